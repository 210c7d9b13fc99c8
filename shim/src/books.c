/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact books without a lock and without a shared total.
 *
 * Each process announces in its own slot first and sums all slots afterwards (sequentially
 * consistent): of two that race, whoever announces last sees the other, so no interleaving
 * passes the limit. Nothing needs recovery: a dead slot's bytes vanish with the slot, and a
 * stopped process blocks nobody.
 */
#include "books.h"

#include <errno.h>
#include <time.h>

#include "slot.h"
#include "state.h"
#include "sums.h"

enum { ATTEMPTS = 4, PAUSE_NS = 20000, SLOT_PAUSES = 16 };

void (*aq_reclaim)(struct aq_share *share);

static void raise_word(uint64_t *word, uint64_t value) {
  uint64_t seen = aq_word(word);
  while (seen < value &&
         !__atomic_compare_exchange_n(word, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}

/* Moves with every change; two threads that collide may count one. */
static void count_change(struct aq_slot *slot) {
  aq_word_set(&slot->changes, aq_word(&slot->changes) + 1);
}

void aq_pause_after(int attempt, const struct aq_share *share, const struct aq_slot *slot) {
  long place = 1 + (slot - share->ledger->slot) % SLOT_PAUSES;
  struct timespec pause = {0, PAUSE_NS * place * attempt};
  int saved = errno;
  nanosleep(&pause, NULL);
  errno = saved;
}

/* One try: announced, checked, and taken back if it does not fit. */
static inline bool try_announce(struct aq_share *share, struct aq_slot *slot, uint64_t *word, uint64_t amount,
                                uint64_t limit) {
  uint64_t mine = __atomic_add_fetch(word, amount, __ATOMIC_SEQ_CST);
  uint64_t sum = mine < amount ? UINT64_MAX : aq_sum(share); /* wrapped: written over */
  if (sum > limit) {
    __atomic_sub_fetch(word, amount, __ATOMIC_SEQ_CST);
    return false;
  }
  count_change(slot);
  uint64_t used = aq_word(&slot->used_bytes);
  if (used > aq_word(&slot->peak_bytes))
    raise_word(&slot->peak_bytes, used);
  if (sum > aq_word(&share->ledger->peak_bytes))
    raise_word(&share->ledger->peak_bytes, sum);
  return true;
}

/* The words of a slot in which something is announced. */
enum word { USED, CONTEXTS, CODE };

static uint64_t *word_of(struct aq_slot *slot, enum word word) {
  return word == USED ? &slot->used_bytes : word == CONTEXTS ? &slot->contexts : &slot->code_bytes;
}

/* At the limit: sweep, then wait a little for others who may be about to step back. */
AQ_RARE static bool announce_slowly(struct aq_share *share, enum word word, uint64_t amount,
                                    uint64_t *generation) {
  for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
    if (attempt == 0)
      aq_slot_sweep(share);
    if (attempt == 0 && word != CONTEXTS && aq_reclaim)
      aq_reclaim(share);
    struct aq_slot *slot = aq_slot_own(share);
    if (!slot)
      break;
    if (attempt > 0)
      aq_pause_after(attempt, share, slot);
    *generation = aq_word(&share->generation);
    if (try_announce(share, slot, word_of(slot, word), amount, aq_share_limit(share)))
      return true;
  }
  return false;
}

AQ_RARE static bool refused(struct aq_share *share) {
  __atomic_add_fetch(&share->ledger->denied, 1, __ATOMIC_RELAXED);
  return false;
}

/* The one place where a share is asked for more bytes. */
static inline bool announce(struct aq_share *share, enum word word, uint64_t bytes, uint64_t *generation) {
  uint64_t limit = aq_share_limit(share);
  if (bytes > limit || bytes > SANE_BYTES)
    return refused(share);
  struct aq_slot *slot = aq_slot_own(share);
  *generation = aq_word(&share->generation);
  if (slot && try_announce(share, slot, word_of(slot, word), bytes, limit))
    return true;
  uint64_t other = 0; /* the first one need not stand in memory, as nobody else knows its address */
  bool fits = announce_slowly(share, word, bytes, &other);
  *generation = other;
  return fits || refused(share);
}

/* Nothing is taken from a slot that was swept meanwhile: it never held the bytes. */
static void give_back(struct aq_share *share, uint64_t bytes, uint64_t generation) {
  struct aq_slot *slot = __atomic_load_n(&share->slot, __ATOMIC_ACQUIRE);
  if (!slot || aq_word(&slot->generation) != generation)
    return;
  __atomic_sub_fetch(&slot->used_bytes, bytes, __ATOMIC_SEQ_CST);
  count_change(slot);
}

bool aq_reserve(struct aq_share *share, uint64_t bytes, struct aq_charge *charge) {
  *charge = (struct aq_charge){share, 0, bytes};
  return announce(share, USED, bytes, &charge->generation);
}

/* Enters bytes of a record whose charge was made for a slot that we no longer have. */
AQ_RARE static void enter_anew(struct aq_share *share, uint64_t bytes) {
  struct aq_slot *slot = aq_slot_own(share);
  if (slot)
    __atomic_add_fetch(&slot->used_bytes, bytes, __ATOMIC_SEQ_CST);
}

bool aq_reserve_exactly(struct aq_charge *charge, uint64_t bytes) {
  uint64_t generation;
  if (bytes <= charge->bytes) {
    give_back(charge->share, charge->bytes - bytes, charge->generation);
    charge->bytes = bytes;
    return true;
  }
  if (!announce(charge->share, USED, bytes - charge->bytes, &generation))
    return false;
  if (generation != charge->generation) /* the first part went with the old slot */
    enter_anew(charge->share, charge->bytes);
  charge->bytes = bytes;
  charge->generation = generation;
  return true;
}

void aq_cancel(const struct aq_charge *charge) {
  give_back(charge->share, charge->bytes, charge->generation);
}

bool aq_reserve_at_once(struct aq_share *share, uint64_t bytes, struct aq_charge *charge) {
  *charge = (struct aq_charge){share, 0, bytes};
  struct aq_slot *slot = bytes <= SANE_BYTES ? aq_slot_own(share) : NULL;
  charge->generation = aq_word(&share->generation);
  return slot && try_announce(share, slot, &slot->used_bytes, bytes, aq_share_limit(share));
}

void aq_force(struct aq_share *share, uint64_t bytes, struct aq_charge *charge) {
  struct aq_slot *slot = aq_slot_own(share);
  *charge = (struct aq_charge){share, aq_word(&share->generation), bytes};
  if (!slot)
    return;
  __atomic_add_fetch(&slot->used_bytes, bytes, __ATOMIC_SEQ_CST);
  count_change(slot);
}

static bool put(const struct aq_record *record, uint64_t *generation) {
  struct aq_record replaced;
  if (!aq_records_put(aq_shares, record, &replaced, generation))
    return false;
  if (replaced.key && replaced.bytes) {
    struct aq_share *other = &aq_shares[replaced.share];
    give_back(other, replaced.bytes, aq_word(&other->generation));
  }
  return true;
}

bool aq_commit(const struct aq_charge *charge, const struct aq_record *record) {
  struct aq_record entry = *record;
  uint64_t generation;
  entry.bytes = charge->bytes;
  entry.share = (uint8_t)charge->share->index;
  if (!put(&entry, &generation))
    return false;
  if (generation != charge->generation) /* the new slot was filled before this record was in */
    enter_anew(charge->share, charge->bytes);
  return true;
}

bool aq_note(const struct aq_record *record) {
  uint64_t generation;
  return put(record, &generation);
}

void aq_charge_into(const struct aq_charge *charge, enum aq_thing thing, uint64_t key) {
  struct aq_record record;
  uint64_t generation;
  if (!aq_records_change(aq_shares, thing, key, charge->bytes, 0, &record, &generation)) {
    aq_cancel(charge);
    return;
  }
  if (generation != charge->generation)
    enter_anew(charge->share, charge->bytes);
  if (aq_record_is_managed(&record))
    aq_managed_change(charge->share, charge->bytes);
}

void aq_give_from(struct aq_share *share, enum aq_thing thing, uint64_t key, uint64_t bytes) {
  struct aq_record record;
  uint64_t generation;
  if (!bytes || !aq_records_change(aq_shares, thing, key, -bytes, 0, &record, &generation))
    return;
  give_back(share, bytes, generation);
  if (aq_record_is_managed(&record))
    aq_managed_change(share, -bytes);
}

bool aq_free_begin(enum aq_thing thing, uint64_t key, struct aq_freed *freed) {
  return aq_records_take(aq_shares, thing, key, &freed->record, &freed->generation);
}

void aq_managed_change(struct aq_share *share, uint64_t bytes) {
  struct aq_slot *slot = __atomic_load_n(&share->slot, __ATOMIC_ACQUIRE);
  if (!slot)
    return;
  __atomic_add_fetch(&slot->managed_bytes, bytes, __ATOMIC_RELAXED);
  count_change(slot);
}

void aq_free_end(const struct aq_freed *freed, bool done) {
  struct aq_share *share = &aq_shares[freed->record.share];
  struct aq_charge charge = {share, freed->generation, freed->record.bytes};
  uint64_t managed = aq_record_managed(&freed->record);
  if (done)
    aq_cancel(&charge);
  else /* its place is still there; if not, the bytes stay charged */
    aq_commit(&charge, &freed->record);
  if (done && managed)
    aq_managed_change(share, -managed);
}

bool aq_context_reserve(struct aq_share *share) {
  uint64_t generation;
  if (aq_word(&share->quota->context_estimate_bytes) > aq_share_limit(share) ||
      !announce_slowly(share, CONTEXTS, 1, &generation))
    return refused(share);
  __atomic_add_fetch(&share->contexts, 1, __ATOMIC_SEQ_CST);
  return true;
}

/* Takes away what restore_word would otherwise put back: first from the share, then from the slot. */
static void take_from_word(struct aq_share *share, uint64_t *ours, enum word word, uint64_t amount) {
  __atomic_sub_fetch(ours, amount, __ATOMIC_SEQ_CST);
  struct aq_slot *slot = aq_slot_own(share);
  if (!slot || aq_word(word_of(slot, word)) < amount)
    return;
  __atomic_sub_fetch(word_of(slot, word), amount, __ATOMIC_SEQ_CST);
  count_change(slot);
}

void aq_context_cancel(struct aq_share *share) {
  take_from_word(share, &share->contexts, CONTEXTS, 1);
}

bool aq_code_reserve(struct aq_share *share, uint64_t bytes) {
  uint64_t generation;
  if (!announce(share, CODE, bytes, &generation))
    return false;
  __atomic_add_fetch(&share->code_bytes, bytes, __ATOMIC_SEQ_CST);
  return true;
}

void aq_code_cancel(struct aq_share *share, uint64_t bytes) {
  if (bytes)
    take_from_word(share, &share->code_bytes, CODE, bytes);
}

void aq_context_drop(struct aq_share *share, CUcontext context) {
  struct aq_dropped dropped;
  uint64_t generation;
  aq_records_drop_context(share, context, &dropped, &generation);
  if (dropped.bytes)
    give_back(share, dropped.bytes, generation);
  if (dropped.managed_bytes)
    aq_managed_change(share, -dropped.managed_bytes);
  aq_code_cancel(share, dropped.code_bytes);
}

CUcontext aq_context_rename(struct aq_share *share, CUcontext context) {
  static uintptr_t names = 1; /* odd: no handle, which is a pointer of the driver's */
  CUcontext name = (CUcontext)__atomic_add_fetch(&names, 2, __ATOMIC_RELAXED);
  aq_records_move(share, context, name);
  return name;
}

void aq_context_put_back(struct aq_share *share, CUcontext name, CUcontext context) {
  aq_records_move(share, name, context);
}

uint64_t aq_context_estimate(const struct aq_share *share) {
  return aq_word(&share->quota->context_estimate_bytes);
}

void aq_count_refusal(struct aq_share *share) {
  refused(share);
}
