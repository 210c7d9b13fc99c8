/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shared.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ANCHOR 4096

static int open_file(const struct node *node) {
  char path[4096];
  int length = snprintf(path, sizeof path, "%s/" SIM_SHARED_FILE, node->root);
  if (length < 0 || (size_t)length >= sizeof path) {
    return -1;
  }
  return open(path, O_RDWR | O_CLOEXEC);
}

static struct flock lock_of(uint32_t slot, short type) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
}

bool shared_alive(const struct node *node, uint32_t slot) {
  int fd = open_file(node);
  if (fd < 0) {
    return true; /* without an answer nothing is declared dead */
  }
  struct flock lock = lock_of(slot, F_WRLCK);
  bool alive = fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  close(fd);
  return alive;
}

/* Let a mapping keep the lock of a descriptor, which is closed. */
static void *anchor(int fd) {
  void *map = mmap(NULL, ANCHOR, PROT_NONE, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) {
    return NULL;
  }
  if (madvise(map, ANCHOR, MADV_DONTFORK) != 0) {
    munmap(map, ANCHOR);
    return NULL;
  }
  return map;
}

bool shared_make(struct books *books, struct sim_shared what, struct shared *made) {
  int fd = open_file(&books->node);
  if (fd < 0) {
    return false;
  }
  what.owner = books->slot;
  what.owner_life = atomic_load(&books->node.state->slot[books->slot].life);
  uint32_t slot = slots_claim_shared(&books->node, fd, &what);
  if (slot == 0) {
    close(fd);
    return false;
  }
  uint64_t life = atomic_load(&books->node.state->slot[slot].life);
  void *map = anchor(fd);
  if (!map) {
    slots_reap(&books->node, slot, life);
    return false;
  }
  *made = (struct shared){.slot = slot, .life = life, .anchor = map, .made = true};
  return true;
}

bool shared_set(struct books *books, struct shared *shared, uint64_t bytes) {
  uint32_t gpu = shared_about(books, shared)->gpu;
  if (!books_change_shared(books, gpu, shared->slot, shared->held, bytes)) {
    return false;
  }
  shared->held = bytes;
  return true;
}

const struct sim_shared *shared_about(const struct books *books, const struct shared *shared) {
  return &books->node.state->slot[shared->slot].shared;
}

/* The descriptor's position says which slot it stands for. */
int shared_export(const struct books *books, const struct shared *shared) {
  int fd = open_file(&books->node);
  struct flock lock = lock_of(shared->slot, F_RDLCK);
  if (fd >= 0 && (fcntl(fd, F_OFD_SETLK, &lock) != 0 || lseek(fd, shared->slot, SEEK_SET) < 0)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static uint32_t slot_of(const struct books *books, int given, int own) {
  struct stat theirs;
  struct stat ours;
  off_t position = lseek(given, 0, SEEK_CUR);
  bool same = fstat(given, &theirs) == 0 && fstat(own, &ours) == 0 && theirs.st_dev == ours.st_dev &&
              theirs.st_ino == ours.st_ino;
  bool inside = position > 0 && position < (off_t)SIM_SLOTS;
  if (!same || !inside || !(atomic_load(&books->node.state->slot[position].life) & 1)) {
    return 0;
  }
  return (uint32_t)position;
}

/* While the given descriptor is open, the slot cannot end: our own lock is there in time. */
bool shared_import(const struct books *books, int fd, enum sim_kind kind, struct shared *imported) {
  int own = open_file(&books->node);
  if (own < 0) {
    return false;
  }
  uint32_t slot = slot_of(books, fd, own);
  struct flock lock = lock_of(slot, F_RDLCK);
  if (slot == 0 || atomic_load(&books->node.state->slot[slot].kind) != kind ||
      fcntl(own, F_OFD_SETLK, &lock) != 0) {
    close(own);
    return false;
  }
  uint64_t life = atomic_load(&books->node.state->slot[slot].life);
  void *map = anchor(own);
  if (!map) {
    return false;
  }
  *imported = (struct shared){.slot = slot, .life = life, .anchor = map};
  return true;
}

void shared_drop(struct books *books, struct shared *shared) {
  struct sim_shared *about = &books->node.state->slot[shared->slot].shared;
  if (shared->made) {
    books->gpu[about->gpu].shared -= shared->held;
    __atomic_store_n(&about->owner, 0, __ATOMIC_RELAXED);
  }
  munmap(shared->anchor, ANCHOR);
  if (!shared_alive(&books->node, shared->slot)) {
    slots_reap(&books->node, shared->slot, shared->life);
  }
  *shared = (struct shared){0};
}
