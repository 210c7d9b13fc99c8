/* SPDX-License-Identifier: Apache-2.0
 *
 * What a MIG configuration says, and a slot's part in it.
 */
#include "mig.h"

#include <stdio.h>
#include <string.h>

#include "meter.h"
#include "mig_word.h"
#include "profiles.h"

#define UUID_BY_NAME 5 /* version, as real MIG devices have it */

uint64_t mig_word(const struct sim_state *state, uint32_t gpu) {
  return atomic_load(&state->gpu[gpu].mig);
}
bool mig_is_on(uint64_t word) {
  return word & ON;
}
bool mig_will_be_on(uint64_t word) {
  return word & PENDING;
}

bool mig_instance_at(uint64_t word, unsigned start, struct mig_instance *instance) {
  unsigned kind = start < SIM_SLICES ? mig_word_kind(word, start) : 0;
  if (kind == 0) {
    return false;
  }
  *instance = (struct mig_instance){.kind = kind - 1, .start = start};
  return true;
}

/* The instance that a compute slice belongs to: none begins between its start and its own end. */
bool mig_compute_at(uint64_t word, unsigned slice, struct mig_compute *compute) {
  unsigned size = slice < SIM_SLICES ? mig_word_size(word, slice) : 0;
  for (unsigned start = size ? slice + 1 : 0; start-- > 0;) {
    struct mig_instance in;
    if (mig_instance_at(word, start, &in)) {
      *compute = (struct mig_compute){.in = in, .slice = slice, .size = size};
      return true;
    }
  }
  return false;
}

/* Numbered like a tree: 0 the whole, 1 and 2 the halves, 3 to 6 the quarters, 7 to 13 the slices. This is how
 * the user guide's examples come out (2g at 4:2 is 5, 1g at 6:1 is 13). */
unsigned mig_instance_id(struct mig_instance instance) {
  unsigned size = mig_kinds[instance.kind].memory_slices;
  return 8 / size - 1 + instance.start / size;
}
unsigned mig_compute_id(struct mig_compute compute) {
  return compute.slice - compute.in.start;
}

static unsigned order_of(struct mig_compute compute) {
  return mig_instance_id(compute.in) * 8 + mig_compute_id(compute);
}

/* Put one more into a list that is in order. */
static void insert(struct mig_compute *list, unsigned count, struct mig_compute one) {
  for (; count > 0 && order_of(list[count - 1]) > order_of(one); count--) {
    list[count] = list[count - 1];
  }
  list[count] = one;
}

unsigned mig_instances(uint64_t word, struct mig_instance instances[SIM_SLICES]) {
  struct mig_compute list[SIM_SLICES];
  struct mig_compute one = {0};
  unsigned count = 0;
  for (unsigned start = 0; start < SIM_SLICES; start++) {
    if (mig_instance_at(word, start, &one.in)) {
      one.slice = start;
      insert(list, count++, one);
    }
  }
  for (unsigned i = 0; i < count; i++) {
    instances[i] = list[i].in;
  }
  return count;
}

unsigned mig_computes(uint64_t word, struct mig_compute computes[SIM_SLICES]) {
  struct mig_compute one;
  unsigned count = 0;
  for (unsigned slice = 0; slice < SIM_SLICES; slice++) {
    if (mig_compute_at(word, slice, &one)) {
      insert(computes, count++, one);
    }
  }
  return count;
}

static unsigned bits(unsigned count) {
  return (1U << count) - 1;
}

unsigned mig_free_starts(uint64_t word, unsigned kind) {
  struct mig_instance instances[SIM_SLICES];
  unsigned count = mig_instances(word, instances);
  unsigned taken = 0;
  unsigned alike = 0;
  unsigned starts = 0;
  for (unsigned i = 0; i < count; i++) {
    taken |= bits(mig_kinds[instances[i].kind].memory_slices) << instances[i].start;
    alike += instances[i].kind == kind;
  }
  for (unsigned start = 0; start < SIM_SLICES && alike < mig_kinds[kind].most; start++) {
    bool possible = mig_kinds[kind].starts >> start & 1;
    if (possible && !(taken & bits(mig_kinds[kind].memory_slices) << start)) {
      starts |= 1U << start;
    }
  }
  return starts;
}

/* Places of one kind do not overlap; of media engines there is one set. */
unsigned mig_remaining(uint64_t word, unsigned kind) {
  unsigned places = (unsigned)__builtin_popcount(mig_free_starts(word, kind));
  return places < mig_kinds[kind].most ? places : mig_kinds[kind].most;
}

/* As nvidia-smi mig -lcip lists them: parts of 1, 2, in the whole GPU also 3 and 4, each on its multiple; and
 * all of the GPU instance. */
unsigned mig_possible_slices(unsigned kind, unsigned size) {
  unsigned all = mig_kinds[kind].slices;
  unsigned starts = 0;
  if (size == all) {
    return 1;
  }
  if (size != 1 && size != 2 && (all != SIM_SLICES || (size != 3 && size != 4))) {
    return 0;
  }
  unsigned step = size == 3 ? 4 : size;
  for (unsigned slice = 0; slice + size <= all; slice += step) {
    starts |= 1U << slice;
  }
  return starts;
}

unsigned mig_free_slices(uint64_t word, struct mig_instance in, unsigned size) {
  unsigned possible = mig_possible_slices(in.kind, size);
  unsigned taken = 0;
  for (unsigned slice = 0; slice < mig_kinds[in.kind].slices; slice++) {
    taken |= bits(mig_word_size(word, in.start + slice)) << slice;
  }
  for (unsigned slice = 0; slice < SIM_SLICES; slice++) {
    if (taken & bits(size) << slice) {
      possible &= ~(1U << slice);
    }
  }
  return possible;
}

void mig_name(const struct mig_card *card, struct mig_compute compute, char name[SIM_NAME]) {
  const char *whole = card->size[compute.in.kind].name;
  if (compute.size == mig_kinds[compute.in.kind].slices) {
    snprintf(name, SIM_NAME, "%s", whole);
  } else {
    snprintf(name, SIM_NAME, "%uc.%s", compute.size, whole);
  }
}

unsigned mig_multiprocessors(const struct mig_card *card, struct mig_compute compute) {
  bool whole = compute.size == mig_kinds[compute.in.kind].slices;
  return whole ? card->size[compute.in.kind].multiprocessors : compute.size * card->slice_multiprocessors;
}

void mig_uuid(const struct sim_gpu *gpu, struct mig_compute compute, uint8_t uuid[16]) {
  char name[SIM_UUID_TEXT];
  node_uuid_text(gpu, name);
  uuid_make(name, order_of(compute), UUID_BY_NAME, uuid);
}

void mig_uuid_text(const struct sim_gpu *gpu, struct mig_compute compute, char text[SIM_UUID_TEXT]) {
  uint8_t uuid[16];
  mig_uuid(gpu, compute, uuid);
  uuid_text("MIG-", uuid, text);
}

/* --- a slot's part --- */

uint32_t mig_part(uint32_t gpu, struct mig_compute compute) {
  return 1 + ((gpu * 8 + compute.in.start) * 8 + compute.slice);
}
uint32_t mig_part_gpu(uint32_t part) {
  return (part - 1) / 64;
}
static unsigned start_of(uint32_t part) {
  return (part - 1) / 8 % 8;
}
unsigned mig_part_slice(uint32_t part) {
  return (part - 1) % 8;
}

bool mig_same_instance(uint32_t one, uint32_t other) {
  return (one == 0) == (other == 0) && (one == 0 || (one - 1) / 8 == (other - 1) / 8);
}

bool mig_part_compute(const struct sim_state *state, uint32_t part, struct mig_compute *compute) {
  uint64_t word = mig_word(state, mig_part_gpu(part));
  return mig_compute_at(word, mig_part_slice(part), compute) && compute->in.start == start_of(part);
}

struct sim_meter *mig_meter(struct sim_state *state, uint32_t gpu, uint32_t part) {
  return part == 0 || mig_part_gpu(part) != gpu ? &state->gpu[gpu].used
                                                : &state->instance[gpu][start_of(part)].used;
}

uint64_t mig_memory(const struct sim_state *state, uint32_t gpu, uint32_t part) {
  struct mig_instance in;
  if (part == 0 || mig_part_gpu(part) != gpu) {
    return profile_capacity(state->gpu[gpu].profile);
  }
  bool there = mig_instance_at(mig_word(state, gpu), start_of(part), &in);
  const struct mig_card *card = sim_profiles[state->gpu[gpu].profile].mig;
  return there ? (uint64_t)card->size[in.kind].memory_mib << 20 : 0;
}

uint64_t mig_used(struct sim_state *state, uint32_t gpu) {
  uint64_t used = meter_read(&state->gpu[gpu].used).used;
  bool partitioned = mig_is_on(mig_word(state, gpu));
  for (unsigned start = 0; partitioned && start < SIM_SLICES; start++) {
    used += meter_read(&state->instance[gpu][start].used).used;
  }
  return used;
}

uint32_t mig_lane(uint32_t part) {
  return part == 0 ? 0 : SIM_GPUS + SIM_MPS_LANES + mig_part_gpu(part) * SIM_SLICES + mig_part_slice(part);
}

/* Count the newcomer, so that who saw nobody looks again. */
bool mig_enter(struct sim_state *state, uint32_t part) {
  _Atomic uint64_t *at = &state->gpu[mig_part_gpu(part)].mig;
  struct mig_compute compute;
  for (uint64_t word = atomic_load(at);
       mig_compute_at(word, mig_part_slice(part), &compute) && compute.in.start == start_of(part);) {
    if (mig_word_replace(at, &word, word)) {
      return true;
    }
  }
  return false;
}

bool mig_enter_whole(struct sim_state *state, uint32_t gpu) {
  _Atomic uint64_t *at = &state->gpu[gpu].mig;
  for (uint64_t word = atomic_load(at); !mig_is_on(word);) {
    if (mig_word_replace(at, &word, word)) {
      return true;
    }
  }
  return false;
}
