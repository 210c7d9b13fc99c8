/* SPDX-License-Identifier: Apache-2.0
 *
 * What clients and the control program both need to talk to the daemon.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "mps.h"

#define PATIENCE_MS 20000

int mps_connect(const char *pipe_directory) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe_directory);
  if (length < 0 || (size_t)length >= sizeof address.sun_path) {
    return -1;
  }
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

bool mps_ask(int fd, const char *line, char *answer, size_t size) {
  size_t got = 0;
  if (send(fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line)) {
    return false;
  }
  for (;;) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (poll(&ready, 1, PATIENCE_MS) <= 0) {
      return false;
    }
    ssize_t more = recv(fd, answer + got, size - 1 - got, 0);
    if (more < 0) {
      return false;
    }
    if (more == 0) {
      break;
    }
    got += (size_t)more;
    if (got == size - 1) {
      break;
    }
  }
  while (got > 0 && answer[got - 1] == '\n') {
    got--;
  }
  answer[got] = '\0';
  return true;
}

static uint64_t size_of(const char *text, char **end) {
  uint64_t bytes = strtoull(text, end, 10);
  uint64_t unit = **end == 'G' || **end == 'g' ? 1ULL << 30 : **end == 'M' || **end == 'm' ? 1ULL << 20 : 1;
  *end += unit > 1;
  *end += **end == 'B' || **end == 'b';
  return bytes * unit;
}

uint64_t mps_memory_limit(const char *setting, unsigned ordinal) {
  char *end = NULL;
  for (const char *part = setting; part && *part; part = *end == ',' ? end + 1 : "") {
    const char *equals = strchr(part, '=');
    const char *comma = strchr(part, ',');
    bool keyed = equals && (!comma || equals < comma);
    unsigned long key = keyed ? strtoul(part, &end, 10) : ordinal;
    uint64_t bytes = size_of(keyed ? equals + 1 : part, &end);
    if (key == ordinal) {
      return bytes;
    }
  }
  return UINT64_MAX;
}
