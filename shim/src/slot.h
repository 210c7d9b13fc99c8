/* SPDX-License-Identifier: Apache-2.0
 *
 * Our slot in a ledger: claimed, kept, and those of the dead swept.
 */
#ifndef ALIQUOT_SLOT_H
#define ALIQUOT_SLOT_H

#include "hot.h"
#include "share.h"

/* Words of shared memory. Each is valid by itself; only reservations need an order. */
static inline uint64_t aq_word(const uint64_t *word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void aq_word_set(uint64_t *word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Takes a slot of `share`, unless we hold one. False: all are taken, or the kernel has no
 * open-file-description locks. Keeps errno. */
bool aq_slot_claim(struct aq_share *share);

/* The slot to write to, claimed anew if ours was swept (a program that closed all its
 * descriptors loses the lock while it lives). NULL: none to be had. */
AQ_RARE struct aq_slot *aq_slot_renew(struct aq_share *share);

static inline struct aq_slot *aq_slot_own(struct aq_share *share) {
  struct aq_slot *slot = __atomic_load_n(&share->slot, __ATOMIC_ACQUIRE);
  if (slot && aq_word(&slot->generation) == aq_word(&share->generation) && aq_word(&slot->pid) == share->pid)
    return slot;
  return aq_slot_renew(share);
}

/* Frees the slots of dead processes, and puts right what was written over ours. Never waits
 * for another process. Keeps errno. */
void aq_slot_sweep(struct aq_share *share);

/* Held around claim, renew and sweep, and across fork. */
void aq_slot_lock(void);
void aq_slot_unlock(void);
void aq_slot_reset_lock(void);

#endif
