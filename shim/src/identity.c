/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads /proc without stdio: no allocation, no locale.
 */
#include "identity.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { START_TIME_FIELD = 22, FIRST_FIELD_AFTER_NAME = 3, MAPS_INODE_FIELD = 5 };

/* Field 22 of /proc/PID/stat; the name in field 2 may hold blanks and parentheses. */
static uint64_t start_ticks(const char *path) {
  char text[1024];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  ssize_t length = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (length <= 0)
    return 0;
  text[length] = '\0';
  const char *at = strrchr(text, ')');
  if (!at)
    return 0;
  at++;
  for (int field = FIRST_FIELD_AFTER_NAME; at && *at; field++) {
    at++; /* the blank before the field */
    if (field == START_TIME_FIELD)
      return strtoull(at, NULL, 10);
    at = strchr(at, ' ');
  }
  return 0;
}

static uint64_t own_pidns(void) {
  struct stat status;
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

void aq_identity_self(struct aq_identity *self) {
  self->pid = (uint64_t)getpid();
  self->pidns_inode = own_pidns();
  self->start_ticks = start_ticks("/proc/self/stat");
}

/* One line of /proc/PID/maps: range, permissions, offset, device, inode, path. */
static bool line_maps(const char *line, uint64_t inode) {
  for (int field = 1; field < MAPS_INODE_FIELD; field++) {
    line = strchr(line, ' ');
    if (!line)
      return false;
    line++;
  }
  return strtoull(line, NULL, 10) == inode;
}

static bool maps(const char *path, uint64_t inode) {
  char text[4096 + 256];
  size_t kept = 0;
  bool found = false;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return true; /* another user's: believe it */
  for (ssize_t got; !found && (got = read(fd, text + kept, sizeof(text) - 1 - kept)) > 0;) {
    char *line = text;
    text[kept + (size_t)got] = '\0';
    for (char *end; !found && (end = strchr(line, '\n')); line = end + 1) {
      *end = '\0';
      found = line_maps(line, inode);
    }
    kept = strlen(line);
    if (kept == sizeof(text) - 1)
      kept = 0; /* no line is that long */
    memmove(text, line, kept);
  }
  close(fd);
  return found;
}

bool aq_identity_lives(const struct aq_identity *other, uint64_t inode) {
  if (other->pid == 0 || other->start_ticks == 0 || other->pidns_inode != own_pidns())
    return false;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%llu/stat", (unsigned long long)other->pid);
  if (start_ticks(path) != other->start_ticks)
    return false;
  snprintf(path, sizeof(path), "/proc/%llu/maps", (unsigned long long)other->pid);
  return maps(path, inode);
}
