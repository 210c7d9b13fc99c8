/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of a share is taken and how much is left.
 */
#include <time.h>

#include "books.h"
#include "slot.h"
#include "state.h"
#include "sums.h"

#define REFRESH_NS 50000000ULL

static inline uint64_t lesser(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

uint64_t aq_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* Sweeps, at most every 50 ms. */
AQ_RARE static bool refresh(struct aq_share *share) {
  uint64_t now = aq_now_ns();
  uint64_t last = aq_word(&share->swept_ns);
  if ((now - last < REFRESH_NS && last != 0) ||
      !__atomic_compare_exchange_n(&share->swept_ns, &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return false;
  aq_slot_sweep(share);
  return true;
}

uint64_t aq_view_total(const struct aq_share *share, uint64_t physical_total) {
  return lesser(aq_share_limit(share), physical_total);
}

static uint64_t used_by_all(struct aq_share *share) {
  struct aq_sums used = aq_sums(share, __atomic_load_n(&share->slot, __ATOMIC_ACQUIRE));
  if (used.others > 0 && refresh(share)) /* are they alive? */
    return aq_sum(share);
  return used.all;
}

bool aq_is_full(struct aq_share *share) {
  uint64_t limit = aq_share_limit(share);
  if (limit == UINT64_MAX || aq_sum(share) < limit)
    return false;
  aq_slot_sweep(share);
  if (aq_reclaim)
    aq_reclaim(share);
  bool full = aq_sum(share) >= limit;
  if (full)
    aq_count_refusal(share);
  return full;
}

bool aq_is_over(const struct aq_share *share, uint64_t slack) {
  uint64_t limit = aq_share_limit(share);
  uint64_t sum = aq_sum(share);
  return sum > limit && sum - limit > slack;
}

bool aq_is_full_with(const struct aq_share *share, uint64_t bytes) {
  uint64_t limit = aq_share_limit(share);
  uint64_t sum = aq_sum(share);
  return sum > limit || bytes > limit - sum;
}

uint64_t aq_headroom(const struct aq_share *share) {
  uint64_t limit = aq_share_limit(share);
  if (limit == UINT64_MAX)
    return limit;
  uint64_t sum = aq_sum(share);
  return sum < limit ? limit - sum : 0;
}

struct aq_view aq_view(struct aq_share *share, uint64_t physical_total, uint64_t physical_free) {
  uint64_t limit = aq_share_limit(share);
  uint64_t used = used_by_all(share);
  struct aq_view view = {lesser(limit, physical_total), physical_free, 0};
  view.used = lesser(used, view.total);
  if (limit != UINT64_MAX)
    view.free = lesser(used < limit ? limit - used : 0, physical_free);
  return view;
}
