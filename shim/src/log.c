/* SPDX-License-Identifier: Apache-2.0
 *
 * Opened, appended to in one write, closed: nothing stays open in the program, lines of several
 * processes do not mix, and a log that is rotated is left behind.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LINES = 32, LINE = 512 };

static unsigned lines;
static const char *last;

static const char *path_of(const struct aq_quota *quota) {
  const char *path = (const char *)quota->log_path;
  if (memcmp(quota->magic, AQ_QUOTA_MAGIC, sizeof(quota->magic)) != 0 || quota->layout != AQ_LAYOUT)
    return NULL;
  return path[0] == '/' && memchr(path, 0, AQ_LOG_PATH) ? path : NULL;
}

static void append(const char *path, const char *line, size_t length) {
  struct stat status;
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644);
  if (fd < 0)
    return;
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
    ssize_t written = write(fd, line, length); /* a full disk loses it */
    (void)written;
  }
  close(fd);
}

void aq_log_by(const struct aq_quota *quota, const char *share, const char *what) {
  char line[LINE];
  const char *path = quota ? path_of(quota) : NULL;
  if (!path || __atomic_exchange_n(&last, what, __ATOMIC_RELAXED) == what ||
      __atomic_fetch_add(&lines, 1, __ATOMIC_RELAXED) >= MOST_LINES)
    return;
  int saved = errno;
  int length = snprintf(line, sizeof(line), "%lld pid %d, %.255s: %s\n", (long long)time(NULL), (int)getpid(),
                        share, what);
  if (length > 0 && (size_t)length < sizeof(line))
    append(path, line, (size_t)length);
  errno = saved;
}
