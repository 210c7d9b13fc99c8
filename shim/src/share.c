/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds and maps quota and ledger. Nothing that fails a check is used, no environment
 * variable is read, and sizes are the compiled-in ones.
 */
#include "share.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

/* Out of the way of programs that count on low descriptors. */
enum { HIGH_DESCRIPTOR = 700 };

static uint64_t fnv1a64(const uint8_t *bytes, size_t count) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < count; i++)
    hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
  return hash;
}

/* What is wrong with a file; NULL: nothing. */
static const char *quota_fault(const struct aq_quota *quota) {
  if (memcmp(quota->magic, AQ_QUOTA_MAGIC, sizeof(quota->magic)) != 0)
    return "quota: not the magic of a quota";
  if (quota->layout != AQ_LAYOUT)
    return "quota: of another layout than this library knows";
  if (quota->size != AQ_QUOTA_SIZE)
    return "quota: names another size than it must have";
  if (quota->check != fnv1a64((const uint8_t *)quota, offsetof(struct aq_quota, check)))
    return "quota: check value does not fit header and GPU UUID";
  return NULL;
}

static const char *ledger_fault(const struct aq_ledger *ledger) {
  if (memcmp(ledger->magic, AQ_LEDGER_MAGIC, sizeof(ledger->magic)) != 0)
    return "ledger: not the magic of a ledger";
  if (ledger->layout != AQ_LAYOUT || ledger->size != AQ_LEDGER_SIZE || ledger->slots != AQ_SLOTS)
    return "ledger: of another layout, size or number of slots than this library knows";
  return NULL;
}

/* A regular file `leaf` of share `name`, at least `size` bytes long; -1 if it is not. */
static int open_file(const char *name, const char *leaf, int flags, off_t size, struct stat *status) {
  char path[sizeof(AQ_SHARES_DIR) + AQ_SHARE_NAME + 16];
  int length = snprintf(path, sizeof(path), "%s/%s/%s", AQ_SHARES_DIR, name, leaf);
  if (length < 0 || (size_t)length >= sizeof(path))
    return -1;
  int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0)
    return -1;
  if (fstat(fd, status) != 0 || !S_ISREG(status->st_mode) || status->st_size < size) {
    close(fd);
    return -1;
  }
  return fd;
}

static int raised(int fd) {
  int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
  if (high < 0)
    return fd;
  close(fd);
  return high;
}

bool aq_share_is_ledger(const struct aq_share *share, int fd) {
  struct stat status;
  return fd >= 0 && fstat(fd, &status) == 0 && status.st_dev == share->device &&
         status.st_ino == share->inode;
}

int aq_share_open_ledger(const struct aq_share *share) {
  struct stat status;
  int fd = open_file(share->name, "ledger", O_RDWR, AQ_LEDGER_SIZE, &status);
  if (fd < 0)
    return -1;
  if (!aq_share_is_ledger(share, fd)) {
    close(fd);
    return -1;
  }
  return raised(fd);
}

static const char *map_quota(struct aq_share *share) {
  struct stat status;
  int fd = open_file(share->name, "quota", O_RDONLY, AQ_QUOTA_SIZE, &status);
  if (fd < 0)
    return "quota: no regular file of that size that may be read";
  void *page = mmap(NULL, AQ_QUOTA_SIZE, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (page == MAP_FAILED)
    return "quota: cannot be mapped";
  share->quota = page;
  return quota_fault(page);
}

static const char *map_ledger(struct aq_share *share) {
  struct stat status;
  int fd = open_file(share->name, "ledger", O_RDWR, AQ_LEDGER_SIZE, &status);
  if (fd < 0)
    return "ledger: no regular file of that size that may be written";
  void *pages = mmap(NULL, AQ_LEDGER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  share->fd = raised(fd);
  share->device = status.st_dev;
  share->inode = status.st_ino;
  if (pages == MAP_FAILED)
    return "ledger: cannot be mapped";
  share->ledger = pages;
  return ledger_fault(pages);
}

static void unmap(struct aq_share *share) {
  if (share->quota)
    munmap((void *)share->quota, AQ_QUOTA_SIZE);
  if (share->ledger)
    munmap(share->ledger, AQ_LEDGER_SIZE);
  if (aq_share_is_ledger(share, share->fd))
    close(share->fd);
  memset(share, 0, sizeof(*share));
  share->fd = -1;
}

static bool map(struct aq_share *share, const char *name) {
  memset(share, 0, sizeof(*share));
  share->fd = -1;
  size_t length = strlen(name);
  if (name[0] == '.' || length >= sizeof(share->name))
    return false;
  memcpy(share->name, name, length + 1);
  const char *fault = map_quota(share);
  if (!fault)
    fault = map_ledger(share);
  if (!fault)
    return true;
  aq_log_by(share->quota, share->name, fault);
  unmap(share);
  return false;
}

/* Two shares of one GPU: neither says which limit holds. Both go. */
static size_t drop_twins(struct aq_share shares[AQ_MAX_SHARES], size_t count) {
  bool twin[AQ_MAX_SHARES] = {false};
  for (size_t i = 0; i < count; i++)
    for (size_t j = 0; j < count; j++)
      if (i != j && !memcmp(shares[i].quota->gpu_uuid, shares[j].quota->gpu_uuid, 16))
        twin[i] = true;
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (twin[i]) {
      aq_log_by(shares[i].quota, shares[i].name, "two shares of one GPU: neither says which limit holds");
      unmap(&shares[i]);
      continue;
    }
    if (kept != i)
      shares[kept] = shares[i];
    shares[kept].index = (unsigned)kept;
    kept++;
  }
  return kept;
}

size_t aq_shares_map(struct aq_share shares[AQ_MAX_SHARES]) {
  DIR *directory = opendir(AQ_SHARES_DIR);
  if (!directory)
    return 0;
  size_t count = 0;
  bool too_many = false;
  for (struct dirent *entry; (entry = readdir(directory));) {
    struct aq_share share;
    if (!map(&share, entry->d_name))
      continue;
    too_many = count == AQ_MAX_SHARES;
    if (too_many) {
      unmap(&share);
      break;
    }
    shares[count++] = share;
  }
  closedir(directory);
  if (too_many) {
    aq_shares_unmap(shares, count);
    return 0;
  }
  return drop_twins(shares, count);
}

void aq_shares_unmap(struct aq_share shares[AQ_MAX_SHARES], size_t count) {
  for (size_t i = 0; i < count; i++)
    unmap(&shares[i]);
}
