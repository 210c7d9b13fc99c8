/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of a MIG configuration. Each is one swap of the word (mig_word.h).
 */
#include "events.h"
#include "meter.h"
#include "mig.h"
#include "mig_word.h"
#include "slots.h"

#define MIG_CONFIG_CHANGE 8 /* position of NVML's event bit */

static void tell(struct sim_state *state, uint32_t gpu) {
  events_add(state, (struct event){.gpu = gpu, .type = MIG_CONFIG_CHANGE});
}

/* Whether somebody alive uses the GPU, or only the compute instance of this slice. */
static bool is_used(const struct node *node, uint32_t gpu, uint32_t slice) {
  struct sim_state *state = node->state;
  slots_sweep(node, SIM_ANY, SIM_ANY, 0);
  uint32_t last = atomic_load(&state->slots_used);
  for (uint32_t number = 1; number <= last; number++) {
    const struct sim_slot *slot = &state->slot[number];
    uint32_t part = atomic_load(&slot->part);
    bool here = part == 0
                    ? slice == MIG_ANYWHERE && slots_touches(slot, gpu)
                    : mig_part_gpu(part) == gpu && (slice == MIG_ANYWHERE || mig_part_slice(part) == slice);
    if (here && (atomic_load(&slot->life) & 1)) {
      return true;
    }
  }
  return false;
}

/* Of the free places the last: so do the user guide's examples. */
static bool choose(unsigned free_places, uint32_t wanted, bool last, unsigned *place) {
  if (wanted != MIG_ANYWHERE) {
    *place = wanted;
    return wanted < SIM_SLICES && free_places >> wanted & 1;
  }
  *place = free_places == 0 ? 0
           : last           ? 31U - (unsigned)__builtin_clz(free_places)
                            : (unsigned)__builtin_ctz(free_places);
  return free_places != 0;
}

enum mig_answer mig_create(struct sim_state *state, uint32_t gpu, unsigned kind, uint32_t start,
                           struct mig_instance *made) {
  _Atomic uint64_t *at = &state->gpu[gpu].mig;
  for (uint64_t word = atomic_load(at); mig_is_on(word);) {
    unsigned place;
    if (!choose(mig_free_starts(word, kind), start, true, &place)) {
      return MIG_NO_ROOM;
    }
    meter_clear(&state->instance[gpu][place].used);
    if (mig_word_replace(at, &word, mig_word_flip_kind(word, place, kind + 1))) {
      *made = (struct mig_instance){.kind = kind, .start = place};
      tell(state, gpu);
      return MIG_DONE;
    }
  }
  return MIG_OFF;
}

static bool has_computes(uint64_t word, struct mig_instance in) {
  for (unsigned slice = 0; slice < mig_kinds[in.kind].slices; slice++) {
    if (mig_word_size(word, in.start + slice) != 0) {
      return true;
    }
  }
  return false;
}

/* Without compute instances it has no users. */
enum mig_answer mig_destroy(const struct node *node, uint32_t gpu, unsigned start) {
  _Atomic uint64_t *at = &node->state->gpu[gpu].mig;
  struct mig_instance in;
  for (uint64_t word = atomic_load(at); mig_instance_at(word, start, &in);) {
    if (has_computes(word, in)) {
      return MIG_IN_USE;
    }
    if (mig_word_replace(at, &word, mig_word_flip_kind(word, start, in.kind + 1))) {
      tell(node->state, gpu);
      return MIG_DONE;
    }
  }
  return MIG_ABSENT;
}

/* Its users take turns as those of the whole GPU do. */
static void set_up_lane(struct sim_state *state, uint32_t gpu, struct mig_compute compute) {
  uint32_t lane = mig_lane(mig_part(gpu, compute));
  atomic_store(&state->schedule[lane].slice_ns, atomic_load(&state->schedule[gpu].slice_ns));
}

enum mig_answer mig_create_compute(struct sim_state *state, uint32_t gpu, struct mig_instance in,
                                   unsigned size, uint32_t slice, struct mig_compute *made) {
  _Atomic uint64_t *at = &state->gpu[gpu].mig;
  struct mig_instance now;
  for (uint64_t word = atomic_load(at); mig_instance_at(word, in.start, &now) && now.kind == in.kind;) {
    unsigned place;
    if (!choose(mig_free_slices(word, in, size), slice, false, &place)) {
      return MIG_NO_ROOM;
    }
    struct mig_compute one = {.in = in, .slice = in.start + place, .size = size};
    set_up_lane(state, gpu, one);
    if (mig_word_replace(at, &word, mig_word_flip_size(word, one.slice, size))) {
      *made = one;
      tell(state, gpu);
      return MIG_DONE;
    }
  }
  return MIG_ABSENT;
}

enum mig_answer mig_destroy_compute(const struct node *node, uint32_t gpu, unsigned slice) {
  _Atomic uint64_t *at = &node->state->gpu[gpu].mig;
  struct mig_compute compute;
  for (uint64_t word = atomic_load(at); mig_compute_at(word, slice, &compute);) {
    if (is_used(node, gpu, slice)) {
      return MIG_IN_USE;
    }
    if (mig_word_replace(at, &word, mig_word_flip_size(word, slice, compute.size))) {
      tell(node->state, gpu);
      return MIG_DONE;
    }
  }
  return MIG_ABSENT;
}

/* The pending mode becomes the mode, all instances go. */
static uint64_t after_reset(uint64_t word) {
  return word & PENDING ? PENDING | ON : 0;
}

static void set_pending(_Atomic uint64_t *at, bool on) {
  uint64_t word = atomic_load(at);
  while (!mig_word_replace(at, &word, on ? word | PENDING : word & ~PENDING)) {
  }
}

enum mig_answer mig_set_mode(const struct node *node, uint32_t gpu, bool on) {
  _Atomic uint64_t *at = &node->state->gpu[gpu].mig;
  struct mig_instance instances[SIM_SLICES];
  set_pending(at, on);
  for (uint64_t word = atomic_load(at); mig_is_on(word) != mig_will_be_on(word);) {
    if (mig_instances(word, instances) > 0 || is_used(node, gpu, MIG_ANYWHERE)) {
      return MIG_IN_USE;
    }
    if (mig_word_replace(at, &word, after_reset(word))) {
      tell(node->state, gpu);
    }
    word = atomic_load(at);
  }
  return MIG_DONE;
}

enum mig_answer mig_reset(const struct node *node, uint32_t gpu) {
  _Atomic uint64_t *at = &node->state->gpu[gpu].mig;
  for (uint64_t word = atomic_load(at); (word & ~NUMBERS) != after_reset(word);) {
    if (is_used(node, gpu, MIG_ANYWHERE)) {
      return MIG_IN_USE;
    }
    if (mig_word_replace(at, &word, after_reset(word))) {
      tell(node->state, gpu);
      return MIG_DONE;
    }
  }
  return MIG_DONE;
}
