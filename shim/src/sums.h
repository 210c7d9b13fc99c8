/* SPDX-License-Identifier: Apache-2.0
 *
 * What slots count, one by one and together.
 */
#ifndef ALIQUOT_SUMS_H
#define ALIQUOT_SUMS_H

#include "hot.h"
#include "share.h"

/* A word from this on is no count: the ledger has been written over. */
#define SANE_BYTES    (1ULL << 56)
#define SANE_CONTEXTS (1ULL << 20)

static inline uint64_t aq_beyond(uint64_t value, uint64_t measured) {
  return value > measured ? value - measured : 0;
}

/* `*bits` receives those of all that went into it: none from SANE_BYTES on, if it is a count. */
static inline uint64_t aq_charge_unchecked(const struct aq_slot *slot, uint64_t context_estimate,
                                           uint64_t *bits) {
  uint64_t used = __atomic_load_n(&slot->used_bytes, __ATOMIC_SEQ_CST);
  uint64_t contexts = __atomic_load_n(&slot->contexts, __ATOMIC_SEQ_CST);
  uint64_t code = __atomic_load_n(&slot->code_bytes, __ATOMIC_SEQ_CST);
  uint64_t overhead = aq_word(&slot->overhead_bytes);
  *bits |= used;
  if ((contexts | code) == 0 && (overhead == AQ_OVERHEAD_UNKNOWN || overhead == 0))
    return used;
  if (overhead == AQ_OVERHEAD_UNKNOWN) {
    overhead = 0;
  } else {
    contexts = aq_beyond(contexts, aq_word(&slot->measured_contexts));
    code = aq_beyond(code, aq_word(&slot->measured_code_bytes));
  }
  uint64_t charge = used + overhead + code + contexts * context_estimate;
  *bits |= overhead | code | (contexts > SANE_CONTEXTS ? UINT64_MAX : charge);
  return charge;
}

/* UINT64_MAX: past all reason. */
static inline uint64_t aq_charge_of(const struct aq_slot *slot, uint64_t context_estimate) {
  uint64_t bits = 0;
  uint64_t charge = aq_charge_unchecked(slot, context_estimate, &bits);
  return bits < SANE_BYTES ? charge : UINT64_MAX;
}

struct aq_sums {
  uint64_t all;    /* of all slots, the quota's floor at least */
  uint64_t others; /* of all but one */
};

/* Sequentially consistent, as what is announced: the last one to announce sees all the others. */
AQ_WARM static inline struct aq_sums aq_sums(const struct aq_share *share, const struct aq_slot *own) {
  const struct aq_ledger *ledger = share->ledger;
  uint64_t estimate = aq_word(&share->quota->context_estimate_bytes);
  uint64_t slots = __atomic_load_n(&ledger->slots_used, __ATOMIC_SEQ_CST);
  uint64_t bits = 0;
  uint64_t sum = 0;
  uint64_t ours = 0;
  if (slots > AQ_SLOTS)
    slots = AQ_SLOTS;
  for (const struct aq_slot *slot = ledger->slot; slot < ledger->slot + slots; slot++) {
    uint64_t charge = aq_charge_unchecked(slot, estimate, &bits);
    sum += charge;
    ours = slot == own ? charge : ours;
  }
  uint64_t floor = aq_word(&share->quota->floor_bytes);
  if (bits >= SANE_BYTES)
    return (struct aq_sums){UINT64_MAX, UINT64_MAX};
  return (struct aq_sums){sum > floor ? sum : floor, sum - ours};
}

static inline uint64_t aq_sum(const struct aq_share *share) {
  return aq_sums(share, NULL).all;
}

#endif
