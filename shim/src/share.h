/* SPDX-License-Identifier: Apache-2.0
 *
 * The shares of this container: found, checked and mapped.
 */
#ifndef ALIQUOT_SHARE_H
#define ALIQUOT_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "aliquot_region.h"

enum { AQ_MAX_SHARES = 32, AQ_SHARE_NAME = 256 };

/* One mapped share. `slot`, `generation`, `contexts`, `code_bytes` and `fd` belong to slot.c. */
struct aq_share {
  const struct aq_quota *quota;
  struct aq_ledger *ledger;
  struct aq_slot *slot; /* ours; NULL before cuInit */
  uint64_t generation;  /* of `slot` when we took it */
  uint64_t pid;         /* ours */
  uint64_t contexts;    /* ours on this GPU; never more than `slot` says */
  uint64_t code_bytes;  /* the same */
  uint64_t swept_ns;
  unsigned index;
  int fd; /* of the ledger, for slot locks; -1 = lost */
  dev_t device;
  ino_t inode;
  char name[AQ_SHARE_NAME];
};

/* Maps all valid shares under AQ_SHARES_DIR into `shares`. Their number; 0 if none is valid
 * or there are more than we can hold. Two shares of one GPU cancel each other. What is wrong with
 * the others goes to the log that a quota names. */
size_t aq_shares_map(struct aq_share shares[AQ_MAX_SHARES]);

void aq_shares_unmap(struct aq_share shares[AQ_MAX_SHARES], size_t count);

/* True if `fd` is the mapped ledger: the program may have closed our descriptor, and opened
 * something else there. */
bool aq_share_is_ledger(const struct aq_share *share, int fd);

/* Opens the ledger of `share` again, at a high descriptor; -1 if it is not the mapped one. */
int aq_share_open_ledger(const struct aq_share *share);

/* The limit in bytes; UINT64_MAX if the share has none. One relaxed load: a change of the
 * quota is seen by the next call. */
static inline uint64_t aq_share_limit(const struct aq_share *share) {
  uint64_t flags = __atomic_load_n(&share->quota->flags, __ATOMIC_RELAXED);
  uint64_t limit = __atomic_load_n(&share->quota->memory_limit_bytes, __ATOMIC_RELAXED);
  return flags & AQ_FLAG_UNLIMITED ? UINT64_MAX : limit;
}

static inline bool aq_share_is_limited(const struct aq_share *share) {
  return !(__atomic_load_n(&share->quota->flags, __ATOMIC_RELAXED) & AQ_FLAG_UNLIMITED);
}

#endif
