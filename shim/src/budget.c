/* SPDX-License-Identifier: Apache-2.0
 *
 * A generic cell rate algorithm in one word, and the few words around it that the agent reads.
 */
#include "budget.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FACTOR_ONE   1000000ULL
#define FACTOR_LEAST 100000ULL
#define FACTOR_MOST  10000000ULL
#define NAP_NS       1000000ULL /* waking more often for less only costs: the burst makes up for it */

struct aq_purse aq_purses[AQ_MAX_SHARES];

static uint64_t lesser(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

static uint64_t greater(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

static uint64_t load(const uint64_t *word) {
  return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* --- pure --- */

uint64_t aq_share_at(const struct aq_quota *quota, uint64_t now) {
  uint64_t cores = lesser(load(&quota->cores_millipercent), AQ_FULL_MILLIPERCENT);
  uint64_t lent = load(&quota->lent_until_ns) > now ? load(&quota->lent_millipercent) : 0;
  return lesser(cores + lesser(lent, AQ_FULL_MILLIPERCENT), AQ_FULL_MILLIPERCENT);
}

/* Nothing is saved up before now. */
static uint64_t base_of(uint64_t tat, uint64_t now) {
  return tat > now + AQ_HORIZON_NS ? now : greater(tat, now);
}

static uint64_t factor_of(uint64_t factor_ppm) {
  return factor_ppm == 0 ? FACTOR_ONE : lesser(greater(factor_ppm, FACTOR_LEAST), FACTOR_MOST);
}

uint64_t aq_spent_after(uint64_t tat, uint64_t now, uint64_t cost_ns, uint64_t millipercent,
                        uint64_t factor_ppm) {
  uint64_t factor = factor_of(factor_ppm);
  uint64_t span = lesser(cost_ns, AQ_HORIZON_NS) * AQ_FULL_MILLIPERCENT / millipercent;
  uint64_t after = base_of(tat, now) + lesser(span, AQ_HORIZON_NS) * factor / FACTOR_ONE;
  /* A whole GPU is not held, and has no debt when it becomes less. */
  return lesser(after, now + (millipercent < AQ_FULL_MILLIPERCENT ? AQ_HORIZON_NS : AQ_BURST_NS));
}

uint64_t aq_spent_wait(uint64_t tat, uint64_t now, uint64_t millipercent) {
  uint64_t base = base_of(tat, now);
  if (millipercent >= AQ_FULL_MILLIPERCENT || base <= now + AQ_BURST_NS)
    return 0;
  return greater(base - now - AQ_BURST_NS, NAP_NS);
}

uint64_t aq_spent_rescaled(uint64_t tat, uint64_t now, uint64_t before, uint64_t millipercent) {
  if (before >= millipercent || tat <= now || tat > now + AQ_HORIZON_NS)
    return tat;
  return now + (tat - now) * before / millipercent;
}

/* --- of a share --- */

uint64_t aq_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

void aq_purse_give(const struct aq_share *share, uint64_t ns) {
  __atomic_add_fetch(&aq_purses[share->index].left_ns, (int64_t)ns, __ATOMIC_RELAXED);
}

void aq_purse_refund(const struct aq_share *share, uint64_t ns) {
  int64_t left = __atomic_load_n(&aq_purses[share->index].left_ns, __ATOMIC_RELAXED);
  if (left < (int64_t)AQ_REFUND_NS)
    aq_purse_give(share, lesser(ns, AQ_REFUND_NS - (uint64_t)(left > 0 ? left : 0)));
}

/* Whoever sees first that the share grew shortens the wait; if it dies before it has, nobody does. */
static void follow_share(struct aq_ledger *ledger, uint64_t now, uint64_t share) {
  uint64_t before = load(&ledger->paced_millipercent);
  if (before == share || !__atomic_compare_exchange_n(&ledger->paced_millipercent, &before, share, false,
                                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return;
  uint64_t tat = load(&ledger->tat_ns);
  while (!__atomic_compare_exchange_n(&ledger->tat_ns, &tat, aq_spent_rescaled(tat, now, before, share),
                                      false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}

static void granted(struct aq_ledger *ledger, uint64_t ns, uint64_t now) {
  __atomic_add_fetch(&ledger->granted_ns, ns, __ATOMIC_RELAXED);
  __atomic_store_n(&ledger->last_launch_ns, now, __ATOMIC_RELAXED);
}

uint64_t aq_budget_draw(struct aq_share *share, uint64_t cost_ns) {
  int64_t left = __atomic_load_n(&aq_purses[share->index].left_ns, __ATOMIC_RELAXED);
  uint64_t lacking = (int64_t)cost_ns > left ? cost_ns - (uint64_t)left : 0;
  uint64_t need = greater(lacking, AQ_AHEAD_NS);
  uint64_t now = aq_clock_ns();
  uint64_t rate = aq_share_at(share->quota, now);
  if (rate == 0) { /* what was lent has expired: nothing holds it now */
    aq_purse_give(share, need);
    return 0;
  }
  struct aq_ledger *ledger = share->ledger;
  follow_share(ledger, now, rate);
  uint64_t factor = load(&share->quota->cost_factor_ppm);
  uint64_t tat = load(&ledger->tat_ns);
  do {
    uint64_t wait = aq_spent_wait(tat, now, rate);
    if (wait > 0)
      return wait;
  } while (!__atomic_compare_exchange_n(&ledger->tat_ns, &tat, aq_spent_after(tat, now, need, rate, factor),
                                        false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  granted(ledger, need, now);
  aq_purse_give(share, need);
  __atomic_add_fetch(&aq_purses[share->index].drawn_ns, need, __ATOMIC_RELAXED);
  return 0;
}

float aq_budget_correction(const struct aq_share *share) {
  return (float)factor_of(load(&share->quota->cost_factor_ppm)) / (float)FACTOR_ONE;
}

bool aq_budget_holds(const struct aq_share *share) {
  uint64_t rate = aq_share_at(share->quota, aq_clock_ns());
  return rate > 0 && rate < AQ_FULL_MILLIPERCENT;
}

bool aq_budget_borrows(const struct aq_share *share) {
  return load(&share->quota->lent_millipercent) > 0 && load(&share->quota->lent_until_ns) > aq_clock_ns() &&
         load(&share->quota->cores_millipercent) < AQ_FULL_MILLIPERCENT;
}

void aq_budget_charge(struct aq_share *share, uint64_t ns) {
  uint64_t now = aq_clock_ns();
  uint64_t rate = aq_share_at(share->quota, now);
  if (rate == 0)
    return;
  uint64_t factor = load(&share->quota->cost_factor_ppm);
  uint64_t tat = load(&share->ledger->tat_ns);
  while (!__atomic_compare_exchange_n(&share->ledger->tat_ns, &tat,
                                      aq_spent_after(tat, now, ns, rate, factor), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
    ;
  granted(share->ledger, ns, now);
}

/* Not clock_nanosleep(3): a launch is no point at which a thread may be cancelled. */
void aq_budget_pause(struct aq_share *share, uint64_t wait_ns) {
  int saved = errno;
  uint64_t now = aq_clock_ns();
  uint64_t until = now + lesser(wait_ns, AQ_PIECE_NS);
  struct timespec wake = {(time_t)(until / 1000000000ULL), (long)(until % 1000000000ULL)};
  __atomic_store_n(&share->ledger->last_launch_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&share->ledger->waiting_until_ns, until, __ATOMIC_RELAXED);
  syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL);
  if (aq_share_at(share->quota, now) < AQ_FULL_MILLIPERCENT)
    __atomic_add_fetch(&share->ledger->throttled_ns, aq_clock_ns() - now, __ATOMIC_RELAXED);
  errno = saved;
}

void aq_purses_reset(void) {
  memset(aq_purses, 0, sizeof(aq_purses));
}
