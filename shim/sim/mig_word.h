/* SPDX-License-Identifier: Apache-2.0
 *
 * The word that is a GPU's whole MIG configuration.
 *
 * GPU instances cannot overlap, so the first memory slice names one: four bits
 * for each slice say which kind begins there (0: none). Compute slices of an
 * instance begin at its first memory slice; three bits for each say how large
 * a compute instance begins there. A number counts changes and processes that
 * began to use the GPU: who found nobody using it, and then finds the word
 * unchanged, knows that nobody came meanwhile.
 */
#ifndef SIM_MIG_WORD_H
#define SIM_MIG_WORD_H

#include <stdbool.h>

#include "layout.h"

#define KIND_BITS  4U
#define SIZE_BITS  3U
#define SIZES_AT   (KIND_BITS * SIM_SLICES)
#define ON         (1ULL << (SIZES_AT + SIZE_BITS * SIM_SLICES))
#define PENDING    (ON << 1)
#define NUMBER_ONE (ON << 2)
#define NUMBERS    (~(NUMBER_ONE - 1))

_Static_assert(NUMBERS != 0, "13 bits are left to count");

static inline unsigned mig_word_kind(uint64_t word, unsigned start) {
  return (unsigned)(word >> KIND_BITS * start) & ((1U << KIND_BITS) - 1);
}
static inline unsigned mig_word_size(uint64_t word, unsigned slice) {
  return (unsigned)(word >> (SIZES_AT + SIZE_BITS * slice)) & ((1U << SIZE_BITS) - 1);
}

/* `change` is exclusive or: a field of it, moved to its place. */
static inline uint64_t mig_word_flip_kind(uint64_t word, unsigned start, unsigned kind) {
  return word ^ (uint64_t)kind << KIND_BITS * start;
}
static inline uint64_t mig_word_flip_size(uint64_t word, unsigned slice, unsigned size) {
  return word ^ (uint64_t)size << (SIZES_AT + SIZE_BITS * slice);
}

/* Swap the word for its successor; false: it was another one, which `word` is then. */
static inline bool mig_word_replace(_Atomic uint64_t *at, uint64_t *word, uint64_t wanted) {
  uint64_t next = (wanted & ~NUMBERS) | ((*word + NUMBER_ONE) & NUMBERS);
  return atomic_compare_exchange_strong(at, word, next);
}

#endif
