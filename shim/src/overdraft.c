/* SPDX-License-Identifier: Apache-2.0
 *
 * The right to risk passing the limit: one word of the ledger. Its value names the holder's slot, the
 * slot's generation, and which of the holder's rights it is. Nobody waits long for it; whoever dies with it
 * or stands still loses it.
 */
#include "books.h"
#include "slot.h"

enum { ATTEMPTS = 16, COUNT_BITS = 32 };

#define GENERATIONS (UINT64_MAX / AQ_SLOTS >> COUNT_BITS)

#define ABANDONED_NS 200000000ULL

static uint64_t new_right(const struct aq_share *share, const struct aq_slot *slot) {
  static uint32_t counter;
  uint64_t generation = aq_word(&share->generation) & GENERATIONS;
  uint64_t count = __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED);
  return (generation << COUNT_BITS | count) * AQ_SLOTS + (uint64_t)(slot - share->ledger->slot);
}

/* After a sweep: its process is. */
static bool is_gone(const struct aq_share *share, uint64_t right) {
  const struct aq_slot *slot = &share->ledger->slot[right % AQ_SLOTS];
  uint64_t generation = aq_word(&slot->generation) & GENERATIONS;
  return !aq_word(&slot->pid) || generation != right / AQ_SLOTS >> COUNT_BITS;
}

/* One right, seen again after so long, is that of a process that stands still. */
static bool is_abandoned(uint64_t right) {
  static uint64_t seen;
  static uint64_t seen_since_ns;
  uint64_t now = aq_now_ns();
  if (__atomic_load_n(&seen, __ATOMIC_RELAXED) == right)
    return now - __atomic_load_n(&seen_since_ns, __ATOMIC_RELAXED) > ABANDONED_NS;
  __atomic_store_n(&seen_since_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&seen, right, __ATOMIC_RELAXED);
  return false;
}

uint64_t aq_overdraft_take(struct aq_share *share) {
  struct aq_slot *slot = aq_slot_own(share);
  if (!slot)
    return 0;
  uint64_t right = new_right(share, slot);
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    uint64_t holder = 0;
    if (__atomic_compare_exchange_n(&share->ledger->overdraft, &holder, right, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
      return right;
    if (attempt == 0)
      aq_slot_sweep(share);
    if ((is_gone(share, holder) || is_abandoned(holder)) &&
        __atomic_compare_exchange_n(&share->ledger->overdraft, &holder, right, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
      return right;
    aq_pause_after(1, share, slot);
  }
  return 0;
}

void aq_overdraft_give(struct aq_share *share, uint64_t right) {
  if (right)
    __atomic_compare_exchange_n(&share->ledger->overdraft, &right, 0, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}
