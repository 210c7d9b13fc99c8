/* SPDX-License-Identifier: Apache-2.0
 *
 * What slots count, one by one and together.
 */
#ifndef ALIQUOT_SUMS_H
#define ALIQUOT_SUMS_H

#include "share.h"

/* A word above this is no count: the ledger has been written over. */
#define SANE_BYTES    (1ULL << 56)
#define SANE_CONTEXTS (1ULL << 20)

static inline uint64_t aq_beyond(uint64_t value, uint64_t measured) {
  return value > measured ? value - measured : 0;
}

/* UINT64_MAX: past all reason. */
static inline uint64_t aq_charge_of(const struct aq_slot *slot, uint64_t context_estimate) {
  uint64_t used = __atomic_load_n(&slot->used_bytes, __ATOMIC_SEQ_CST);
  uint64_t contexts = __atomic_load_n(&slot->contexts, __ATOMIC_SEQ_CST);
  uint64_t code = __atomic_load_n(&slot->code_bytes, __ATOMIC_SEQ_CST);
  uint64_t overhead = aq_word(&slot->overhead_bytes);
  if (contexts == 0 && code == 0 && (overhead == AQ_OVERHEAD_UNKNOWN || overhead == 0))
    return used;
  if (overhead == AQ_OVERHEAD_UNKNOWN) {
    overhead = 0;
  } else {
    contexts = aq_beyond(contexts, aq_word(&slot->measured_contexts));
    code = aq_beyond(code, aq_word(&slot->measured_code_bytes));
  }
  if (used > SANE_BYTES || overhead > SANE_BYTES || code > SANE_BYTES || contexts > SANE_CONTEXTS)
    return UINT64_MAX;
  return used + overhead + code + contexts * context_estimate;
}

/* Sequentially consistent, as what is announced: the last one to announce sees all the others. */
static inline uint64_t aq_sum(const struct aq_share *share) {
  const struct aq_ledger *ledger = share->ledger;
  uint64_t estimate = aq_word(&share->quota->context_estimate_bytes);
  uint64_t slots = __atomic_load_n(&ledger->slots_used, __ATOMIC_SEQ_CST);
  uint64_t sum = 0;
  if (slots > AQ_SLOTS)
    slots = AQ_SLOTS;
  for (uint64_t i = 0; i < slots; i++) {
    uint64_t charge = aq_charge_of(&ledger->slot[i], estimate);
    if (charge > SANE_BYTES)
      return UINT64_MAX;
    sum += charge;
  }
  uint64_t floor = aq_word(&share->quota->floor_bytes);
  return sum > floor ? sum : floor;
}

#endif
