/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks that a pool held for certain when the driver last said how much it has reserved: of those, the ones
 * that were freed since. If such a block is given out again, the driver need not be asked, whatever it took
 * back meanwhile: where a pool grows over memory that it held then, it has shrunk by as much since.
 *
 * Any thread, without a lock: an entry that two threads have written at once is none. What is forgotten costs
 * a question.
 */
#ifndef ALIQUOT_SIGHTINGS_H
#define ALIQUOT_SIGHTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "hot.h"

enum { AQ_SIGHTING_SET_BITS = 10 };

struct aq_sighting {
  uint64_t seal;   /* of the block and the answer, so that words of several entries make none */
  uint64_t answer; /* which pool's, and which of them */
};

/* In one cache line, by address; the later one comes first. */
struct aq_sighting_set {
  struct aq_sighting way[2];
} __attribute__((aligned(32)));

extern struct aq_sighting_set aq_sightings[1 << AQ_SIGHTING_SET_BITS];

/* Odd, so that nothing is lost in a product. */
#define AQ_SIGHTING_SPREAD_BYTES  0x9e3779b97f4a7c15ULL
#define AQ_SIGHTING_SPREAD_ANSWER 0xd1b54a32d192ed03ULL

static inline struct aq_sighting_set *aq_sighting_set(uint64_t address) {
  return &aq_sightings[address * AQ_SIGHTING_SPREAD_BYTES >> (64 - AQ_SIGHTING_SET_BITS)];
}

static inline struct aq_sighting aq_sighting_of(uint64_t address, uint64_t bytes, uint64_t answer) {
  uint64_t block = address ^ bytes * AQ_SIGHTING_SPREAD_BYTES;
  return (struct aq_sighting){block ^ answer * AQ_SIGHTING_SPREAD_ANSWER, answer};
}

static inline struct aq_sighting aq_sighting_read(const struct aq_sighting *at) {
  return (struct aq_sighting){__atomic_load_n(&at->seal, __ATOMIC_RELAXED),
                              __atomic_load_n(&at->answer, __ATOMIC_RELAXED)};
}

static inline void aq_sighting_write(struct aq_sighting *at, struct aq_sighting sighting) {
  __atomic_store_n(&at->seal, sighting.seal, __ATOMIC_RELAXED);
  __atomic_store_n(&at->answer, sighting.answer, __ATOMIC_RELAXED);
}

static inline bool aq_sighting_same(struct aq_sighting one, struct aq_sighting other) {
  return one.seal == other.seal && one.answer == other.answer;
}

/* A block of `bytes` was held when answer `answer` was given. */
static inline void aq_sighting_keep(uint64_t address, uint64_t bytes, uint64_t answer) {
  struct aq_sighting_set *set = aq_sighting_set(address);
  struct aq_sighting first = aq_sighting_read(&set->way[0]);
  struct aq_sighting now = aq_sighting_of(address, bytes, answer);
  if (AQ_USUALLY(aq_sighting_same(first, now)))
    return;
  if (!aq_sighting_same(first, aq_sighting_of(address, bytes, first.answer)))
    aq_sighting_write(&set->way[1], first);
  aq_sighting_write(&set->way[0], now);
}

/* It was. */
static inline bool aq_sighting_holds(uint64_t address, uint64_t bytes, uint64_t answer) {
  const struct aq_sighting_set *set = aq_sighting_set(address);
  struct aq_sighting wanted = aq_sighting_of(address, bytes, answer);
  return AQ_USUALLY(aq_sighting_same(aq_sighting_read(&set->way[0]), wanted)) ||
         aq_sighting_same(aq_sighting_read(&set->way[1]), wanted);
}

#endif
