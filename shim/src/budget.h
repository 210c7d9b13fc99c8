/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU time of a share: what its processes draw from, and how long they wait for it
 * (aliquot_region.h, "Compute shares").
 *
 * One word of the ledger says until when the budget is spent. It has no owner and there is no lock:
 * whoever dies or is stopped in the middle of a draw leaves nothing to repair. Any thread.
 */
#ifndef ALIQUOT_BUDGET_H
#define ALIQUOT_BUDGET_H

#include <stdbool.h>

#include "hot.h"
#include "share.h"

#define AQ_FULL_MILLIPERCENT 100000ULL
#define AQ_BURST_NS          50000000ULL /* of the clock: what an idle share saves up */
#define AQ_AHEAD_NS          500000ULL   /* drawn at once: most launches find it here */
#define AQ_HORIZON_NS                                                                                        \
  60000000000ULL                 /* no debt lies further ahead: more is a spoilt word, or an old boot's      \
                                  */
#define AQ_REFUND_NS 20000000ULL /* the purse holds this much after a refund */
#define AQ_PIECE_NS  5000000ULL  /* slept at once: a change of the share is seen after it */
#define AQ_LEAD_NS   20000000ULL /* launched on borrowed time and not done: its owner waits for that */

/* --- pure --- */

/* The share at `now`, 0 .. AQ_FULL_MILLIPERCENT. */
uint64_t aq_share_at(const struct aq_quota *quota, uint64_t now);
/* Where a budget is spent to after `cost_ns` more at `millipercent` > 0. */
uint64_t aq_spent_after(uint64_t tat, uint64_t now, uint64_t cost_ns, uint64_t millipercent,
                        uint64_t factor_ppm);
/* How long until something can be drawn from it; 0: now. */
uint64_t aq_spent_wait(uint64_t tat, uint64_t now, uint64_t millipercent);
/* The same budget under a larger share. */
uint64_t aq_spent_rescaled(uint64_t tat, uint64_t now, uint64_t before, uint64_t millipercent);

/* --- of a share --- */

/* False: neither reserved nor lent, so that nothing is to be counted. Two relaxed loads. */
static inline bool aq_share_is_paced(const struct aq_share *share) {
  return (__atomic_load_n(&share->quota->cores_millipercent, __ATOMIC_RELAXED) |
          __atomic_load_n(&share->quota->lent_millipercent, __ATOMIC_RELAXED)) != 0;
}

/* What this process has drawn and not spent. */
extern struct aq_purse {
  _Alignas(64) int64_t left_ns;
  uint64_t drawn_ns; /* ever */
} aq_purses[AQ_MAX_SHARES];

/* Spends `cost_ns` of the purse; false: there is less in it. */
static inline bool aq_purse_take(const struct aq_share *share, uint64_t cost_ns) {
  int64_t *left = &aq_purses[share->index].left_ns;
  int64_t had = __atomic_load_n(left, __ATOMIC_RELAXED);
  while (had >= (int64_t)cost_ns)
    if (__atomic_compare_exchange_n(left, &had, had - (int64_t)cost_ns, true, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
      return true;
  return false;
}

/* Puts back what was not used after all. */
void aq_purse_give(const struct aq_share *share, uint64_t ns);
/* The same for a guess that was too high: many of them together must not become a flood. */
void aq_purse_refund(const struct aq_share *share, uint64_t ns);

/* One attempt to fill the purse, so that `cost_ns` can be taken. How long to wait before the next; 0: done.
 */
uint64_t aq_budget_draw(struct aq_share *share, uint64_t cost_ns);
/* What its costs are multiplied with. */
float aq_budget_correction(const struct aq_share *share);
/* False: none of its launches is held now. */
bool aq_budget_holds(const struct aq_share *share);
/* True while it has more than its own, which somebody can come back to. */
bool aq_budget_borrows(const struct aq_share *share);
/* Spends what has been used already, without asking. */
void aq_budget_charge(struct aq_share *share, uint64_t ns);
/* Sleeps for `wait_ns`, AQ_PIECE_NS at most, and tells the agent so; who has the whole GPU is not throttled
 * by it. No lock may be held. Keeps errno. */
AQ_RARE void aq_budget_pause(struct aq_share *share, uint64_t wait_ns);

/* CLOCK_MONOTONIC, exact. */
uint64_t aq_clock_ns(void);

/* In a forked child. */
void aq_purses_reset(void);

#endif
