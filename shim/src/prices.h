/* SPDX-License-Identifier: Apache-2.0
 *
 * What a launch costs: the GPU time measured for a kernel with its grid and block, or for an executable
 * graph.
 *
 * A table of fixed size; what is launched least makes room. Any thread; a price that is pushed out while a
 * thread looks at it is a wrong figure for one launch, nothing worse.
 */
#ifndef ALIQUOT_PRICES_H
#define ALIQUOT_PRICES_H

#include <stdbool.h>
#include <stdint.h>

#include "hot.h"

#define AQ_GUARD_NS       1000000ULL /* for what was never measured */
#define AQ_PRICE_LEAST_NS 1000ULL    /* one sample near zero must not switch pacing off */

enum { AQ_PRICES = 4096, AQ_PRICE_WAYS = 8, AQ_PRICE_SAMPLES = 16 };

struct aq_price {
  _Alignas(128) uint64_t key; /* 0 = empty */
  uint64_t cost_ns;           /* a guess until `known` */
  uint32_t launches;
  uint32_t unsettled; /* launches that paid a guess ... */
  uint32_t pending;   /* measurements under way */
  bool known;
  uint8_t count; /* of samples, and where the next goes */
  uint8_t next;
  uint8_t unsound;  /* in a row; AQ_PRICE_SAMPLES: so are those that are kept */
  uint64_t paid_ns; /* ... of this much in all */
  float sample_ms[AQ_PRICE_SAMPLES];
  float lowest_ms; /* of sound samples, rising; 0: there were none */
  uint64_t moved_ns;
};

struct aq_sample {
  float ms;
  float sound_ms;   /* it certainly took no longer than that; 0: nothing is certain, `ms` may be too low */
  float correction; /* what the agent multiplies the share's prices with; 1: perhaps nobody corrects them */
  uint64_t at_ns;
};

extern struct aq_price aq_prices[AQ_PRICES];

struct aq_launch {
  const void *function; /* CUfunction, CUkernel or CUgraphExec */
  unsigned grid[3];
  unsigned block[3];
};

/* Never 0. The same kernel on two GPUs is two prices. */
static inline uint64_t aq_price_key(const struct aq_launch *launch, unsigned share) {
  uint64_t a = (uint64_t)(uintptr_t)launch->function + share + 1;
  uint64_t b = (uint64_t)launch->grid[0] << 32 | launch->block[0];
  uint64_t c = (uint64_t)launch->grid[1] << 32 | launch->block[1];
  uint64_t d = (uint64_t)launch->grid[2] << 32 | launch->block[2];
  uint64_t hash = a * 0x9e3779b97f4a7c15ULL ^ (b + 0x632be59bd9b4e019ULL) * 0xd6e8feb86659fd93ULL;
  hash = (hash ^ hash >> 29) + (c * 0xa0761d6478bd642fULL ^ d * 0xe7037ed1a0b428dbULL);
  hash ^= hash >> 32;
  return hash | 1;
}

/* The few places where it can be. */
static inline struct aq_price *aq_price_set(uint64_t key) {
  return &aq_prices[(key >> 20) % (AQ_PRICES / AQ_PRICE_WAYS) * AQ_PRICE_WAYS];
}

/* Makes room for the key. */
AQ_RARE struct aq_price *aq_price_add(uint64_t key);

static inline struct aq_price *aq_price_find(uint64_t key) {
  struct aq_price *set = aq_price_set(key);
  for (unsigned way = 0; way < AQ_PRICE_WAYS; way++)
    if (__atomic_load_n(&set[way].key, __ATOMIC_ACQUIRE) == key)
      return &set[way];
  return aq_price_add(key);
}

static inline uint64_t aq_price_cost(const struct aq_price *price) {
  return __atomic_load_n(&price->cost_ns, __ATOMIC_RELAXED);
}

static inline bool aq_price_is_known(const struct aq_price *price) {
  return __atomic_load_n(&price->known, __ATOMIC_RELAXED);
}

/* Counts a launch. True: this one is to be measured: the first few, then every 64th, of long ones every 8th.
 */
static inline bool aq_price_count(struct aq_price *price) {
  uint32_t launches = __atomic_load_n(&price->launches, __ATOMIC_RELAXED);
  __atomic_store_n(&price->launches, launches + 1, __ATOMIC_RELAXED);
  uint32_t mask = aq_price_cost(price) < AQ_GUARD_NS ? 63 : 7;
  return (launches & mask) == 0 || (launches < 64 && (launches & (launches - 1)) == 0);
}

/* The least, as whoever competes only lengthens samples, and most of them where others have most of the GPU;
 * never below a quarter of the median. Pure. */
uint64_t aq_price_estimate(const float *sample_ms, unsigned count);
/* For long stretches every sample may hold turns of others, many or few: the least of a few samples would
 * jump about, faster than the agent corrects it. So what was lowest stays, and rises slowly with each sample
 * `ms`; faster where all of them agree, as of a kernel that takes longer now. Pure. */
float aq_price_lowest(float lowest_ms, float ms, const float *sample_ms, unsigned count);

/* Where a price of `cost_ns` goes that should be `wanted_ns`, `passed_ns` after it moved last. Prices that
 * are corrected are right on the whole, whatever they hold of others' turns; and the agent needs seconds to
 * follow them. So they move slowly, but for one thing: with its correction a launch pays at once hardly more
 * than it certainly took. Pure. */
uint64_t aq_price_moved(uint64_t cost_ns, uint64_t wanted_ns, float correction, uint64_t passed_ns);

/* A measurement. While there are sound ones, others do not count.
 * `*owed_ns`: what the launches that paid a guess still owe; below zero: they paid too much.
 */
void aq_price_learn(struct aq_price *price, uint64_t key, const struct aq_sample *sample, int64_t *owed_ns);

/* A launch pays a guess, or takes it back (-1). */
void aq_price_guessed(struct aq_price *price, uint64_t cost_ns, int change);
/* What is not known takes this long at least. */
void aq_price_raise(struct aq_price *price, uint64_t key, uint64_t ns);

/* A measurement of it begins (1), or ends (-1). */
void aq_price_pending(struct aq_price *price, uint64_t key, int change);

/* The handle's meaning has ended, or that of any: what it cost is a guess from now on. */
void aq_price_doubt(uint64_t key);
void aq_prices_doubt(void);

/* In a forked child. */
void aq_prices_reset(void);

#endif
