/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of shares and prices, without a GPU: ends with 1 and a line at the first claim that fails.
 * Built with src/budget.c and src/prices.c.
 */
#include <stdio.h>
#include <string.h>

#include "budget.h"
#include "prices.h"

#define MS 1000000ULL

static int failures;

#define EXPECT(claim) ((claim) ? (void)0 : (void)(failures++, printf("line %d: %s\n", __LINE__, #claim)))

static void shares(void) {
  struct aq_quota quota;
  memset(&quota, 0, sizeof(quota));
  EXPECT(aq_share_at(&quota, 5) == 0);
  quota.cores_millipercent = 30000;
  quota.lent_millipercent = 50000;
  quota.lent_until_ns = 100;
  EXPECT(aq_share_at(&quota, 99) == 80000);
  EXPECT(aq_share_at(&quota, 100) == 30000); /* expired */
  quota.lent_millipercent = UINT64_MAX;
  EXPECT(aq_share_at(&quota, 99) == AQ_FULL_MILLIPERCENT);
  quota.cores_millipercent = UINT64_MAX;
  EXPECT(aq_share_at(&quota, 100) == AQ_FULL_MILLIPERCENT);
}

static void spending(void) {
  uint64_t now = 1000 * MS;
  EXPECT(aq_spent_after(0, now, MS, 10000, 1000000) == now + 10 * MS); /* nothing saved up before now */
  EXPECT(aq_spent_after(now + MS, now, MS, 50000, 0) == now + 3 * MS); /* a factor of 0 is 1 */
  EXPECT(aq_spent_after(now, now, MS, 50000, 500000) == now + MS);
  EXPECT(aq_spent_after(now, now, MS, 50000, 1) == now + 2 * MS / 10);          /* no less than a tenth */
  EXPECT(aq_spent_after(now, now, MS, 50000, UINT64_MAX) == now + 2 * 10 * MS); /* no more than ten times */
  EXPECT(aq_spent_after(now, now, UINT64_MAX / 2, 1, 1000000) == now + AQ_HORIZON_NS);
  EXPECT(aq_spent_after(UINT64_MAX, now, MS, 50000, 1000000) ==
         now + 2 * MS); /* spoilt, or of another boot */
  EXPECT(aq_spent_after(now + 900 * MS, now, MS, AQ_FULL_MILLIPERCENT, 1000000) == now + AQ_BURST_NS);
  EXPECT(aq_spent_wait(now + AQ_BURST_NS, now, 1000) == 0);
  EXPECT(aq_spent_wait(now + AQ_BURST_NS + 7 * MS, now, 1000) == 7 * MS);
  EXPECT(aq_spent_wait(now + AQ_HORIZON_NS, now, AQ_FULL_MILLIPERCENT) == 0);
  EXPECT(aq_spent_wait(UINT64_MAX, now, 1000) == 0);
}

static void growing(void) {
  uint64_t now = 1000 * MS;
  EXPECT(aq_spent_rescaled(now + 900 * MS, now, 10000, 90000) == now + 100 * MS);
  EXPECT(aq_spent_rescaled(now + 900 * MS, now, 90000, 10000) == now + 900 * MS);
  EXPECT(aq_spent_rescaled(now - MS, now, 10000, 90000) == now - MS);
  EXPECT(aq_spent_rescaled(UINT64_MAX, now, 1, 100000) == UINT64_MAX);
}

static void prices(void) {
  float times[AQ_PRICE_SAMPLES];
  for (int i = 0; i < AQ_PRICE_SAMPLES; i++)
    times[i] = 1.0F + (float)((i * 7) % AQ_PRICE_SAMPLES); /* 1 .. 16 ms, shuffled */
  EXPECT(aq_price_estimate(times, AQ_PRICE_SAMPLES) ==
         9 * MS / 4); /* the least is below that of the median */
  for (int i = 0; i < AQ_PRICE_SAMPLES; i++)
    times[i] += 4;
  EXPECT(aq_price_estimate(times, AQ_PRICE_SAMPLES) == 5 * MS); /* the least */
  times[0] = 1;
  EXPECT(aq_price_estimate(times, 1) == MS);
  for (int i = 0; i < AQ_PRICE_SAMPLES; i++)
    times[i] = i < 8 ? 0 : 8;                                   /* half of them near zero */
  EXPECT(aq_price_estimate(times, AQ_PRICE_SAMPLES) == 2 * MS); /* a quarter of the median */
  times[0] = 0;
  EXPECT(aq_price_estimate(times, 1) == AQ_PRICE_LEAST_NS);
  for (int i = 0; i < AQ_PRICE_SAMPLES; i++)
    times[i] = 2 + (float)i / 100;
  EXPECT(aq_price_lowest(0, 2, times, AQ_PRICE_SAMPLES) == 2);
  EXPECT(aq_price_lowest(3, 2, times, AQ_PRICE_SAMPLES) == 2);
  EXPECT(aq_price_lowest(1.99F, 2, times, AQ_PRICE_SAMPLES) == 2);
  EXPECT(aq_price_lowest(1, 2, times, AQ_PRICE_SAMPLES) > 1.04F); /* it takes longer now */
  times[3] = 9;
  EXPECT(aq_price_lowest(1, 2, times, AQ_PRICE_SAMPLES) < 1.01F); /* somebody competes */
}

/* Corrected prices move by 0.3 % a second, and where a launch pays a tenth more than it took. */
static void moving(void) {
  EXPECT(aq_price_moved(4 * MS, MS, 1, 0) == MS && aq_price_moved(MS, 4 * MS, 1, 0) == 4 * MS);
  EXPECT(aq_price_moved(MS, 4 * MS, 0.9F, 0) == MS);
  uint64_t risen = aq_price_moved(MS, 4 * MS, 0.9F, 3600 * 1000 * MS); /* seldom measured */
  EXPECT(risen > 1002 * MS / 1000 && risen < 1004 * MS / 1000);
  EXPECT(aq_price_moved(1001 * MS / 1000, MS, 0.5F, 500 * MS) == MS);
  EXPECT(aq_price_moved(2 * MS, MS, 0.5F, 0) == 2 * MS); /* pays what it took */
  uint64_t fallen = aq_price_moved(4 * MS, MS, 0.5F, 0);
  EXPECT(fallen > 21 * MS / 10 && fallen < 23 * MS / 10);
  EXPECT(aq_price_moved(4 * MS, MS, 3, 0) == MS);
  EXPECT(aq_price_moved(MS, 9 * MS, 9, 0) == 9 * MS); /* the agent cannot correct much more */
}

/* What may be too low counts where there is nothing better. */
static void doubting(void) {
  struct aq_launch launch = {.function = &launch, .grid = {7, 1, 1}};
  uint64_t key = aq_price_key(&launch, 0);
  struct aq_price *price = aq_price_find(key);
  int64_t owed;
  const struct aq_sample low = {.ms = 1, .correction = 0.9F};
  const struct aq_sample sound = {.ms = 4, .sound_ms = 4, .correction = 0.9F};
  aq_price_learn(price, key, &low, &owed);
  EXPECT(aq_price_cost(price) == MS);
  aq_price_learn(price, key, &sound, &owed);
  EXPECT(aq_price_cost(price) == 4 * MS);
  for (int i = 1; i < AQ_PRICE_SAMPLES; i++)
    aq_price_learn(price, key, &low, &owed);
  EXPECT(aq_price_cost(price) == 4 * MS);
  aq_price_learn(price, key, &low, &owed); /* there have been only such for long */
  EXPECT(aq_price_cost(price) < 2 * MS);
}

static void settling(void) {
  struct aq_launch launch = {.function = &launch, .grid = {1, 2, 3}, .block = {4, 5, 6}};
  struct aq_launch other = {.function = &launch, .grid = {2, 1, 3}, .block = {4, 5, 6}};
  uint64_t key = aq_price_key(&launch, 0);
  int64_t owed;
  EXPECT(key != 0 && key != aq_price_key(&launch, 1) && key != aq_price_key(&other, 0));
  struct aq_price *price = aq_price_find(key);
  EXPECT(price == aq_price_find(key) && !aq_price_is_known(price) && aq_price_cost(price) == AQ_GUARD_NS);
  for (int i = 0; i < 3; i++)
    aq_price_guessed(price, AQ_GUARD_NS, 1);
  aq_price_guessed(price, AQ_GUARD_NS, -1); /* one was refused */
  aq_price_learn(price, key, &(struct aq_sample){5, 0, 1, 0}, &owed);
  EXPECT(owed == (int64_t)(2 * 4 * MS) && aq_price_is_known(price) && aq_price_cost(price) == 5 * MS);
  aq_price_learn(price, key, &(struct aq_sample){5, 0, 1, 0}, &owed);
  EXPECT(owed == 0);
  aq_price_learn(price, key, &(struct aq_sample){9, 4, 1, 0}, &owed);
  EXPECT(aq_price_cost(price) == 4 * MS);
  aq_price_doubt(key); /* the handle means another kernel now */
  aq_price_guessed(price, aq_price_cost(price), 1);
  aq_price_learn(price, key, &(struct aq_sample){1, 0, 1, 0}, &owed);
  EXPECT(owed == -(int64_t)(3 * MS) && aq_price_cost(price) == MS);
  aq_price_learn(price, key + 2, &(struct aq_sample){9, 0, 1, 0}, &owed); /* pushed out meanwhile */
  EXPECT(owed == 0 && aq_price_cost(price) == MS);
}

/* Far more kernels than places: what is launched stays. */
static void crowding(void) {
  struct aq_launch hot = {.function = &hot};
  uint64_t key = aq_price_key(&hot, 0);
  int64_t owed;
  struct aq_price *price = aq_price_find(key);
  aq_price_learn(price, key, &(struct aq_sample){1, 0, 1, 0}, &owed);
  for (int i = 0; i < 1000; i++)
    aq_price_count(price);
  for (unsigned i = 1; i < 40000; i++) {
    struct aq_launch once = {.function = &hot, .grid = {i, 1, 1}};
    aq_price_count(aq_price_find(aq_price_key(&once, 0)));
  }
  EXPECT(aq_price_find(key) == price && aq_price_is_known(price));
}

int main(void) {
  shares();
  spending();
  growing();
  prices();
  moving();
  doubting();
  settling();
  crowding();
  return failures > 0;
}
