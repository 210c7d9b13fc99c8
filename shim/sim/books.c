/* SPDX-License-Identifier: Apache-2.0 */
#include "books.h"

#include "meter.h"
#include "mig.h"

static struct meter_move move_of(struct books *books, uint32_t slot, uint32_t gpu, enum sim_which which) {
  struct sim_state *state = books->node.state;
  struct meter_move move = {.state = state, .slot = slot, .gpu = gpu, .which = which, .limit = UINT64_MAX};
  if (which == SIM_GPU_PHYSICAL) {
    uint32_t part = atomic_load_explicit(&state->slot[slot].part, memory_order_relaxed);
    move.meter = mig_meter(state, gpu, part);
    move.limit = mig_memory(state, gpu, part);
  } else {
    struct sim_group *group = &state->group[state->slot[slot].group];
    move.meter = &group->gpu[gpu].measure[which == SIM_GROUP_PHYSICAL ? SIM_PHYSICAL : SIM_REQUESTED];
  }
  return move;
}

/* Before a sum is refused or becomes a peak, the memory of the dead must be out of it. */
static bool carry_out(struct books *books, uint32_t slot, uint32_t gpu, enum sim_which which) {
  struct meter_move move = move_of(books, slot, gpu, which);
  if (meter_apply(&move) == METER_MOVED) {
    return true;
  }
  uint32_t group = which == SIM_GPU_PHYSICAL ? SIM_ANY : books->node.state->slot[slot].group;
  slots_sweep(&books->node, gpu, group, books->slot);
  move.may_raise_peak = true;
  return meter_apply(&move) == METER_MOVED;
}

static void raise(_Atomic uint64_t *peak, uint64_t value) {
  if (value > atomic_load_explicit(peak, memory_order_relaxed)) {
    atomic_store_explicit(peak, value, memory_order_relaxed);
  }
}

static bool move_slot(struct books *books, uint32_t slot, uint32_t gpu, struct sim_change change) {
  struct sim_holding *holding = &books->node.state->slot[slot].holding[gpu];
  uint64_t seq = atomic_load_explicit(&holding->seq, memory_order_relaxed) + 1;
  holding->change[seq & 1] = change;
  atomic_store_explicit(&holding->seq, seq, memory_order_release);
  for (enum sim_which which = 0; which < SIM_METERS; which++) {
    if (!carry_out(books, slot, gpu, which)) {
      return false; /* only the first meter has a limit: none has moved */
    }
  }
  return true;
}

/* A process's own peak counts what it holds in slots of shared memory, too. */
static void raise_own_peaks(struct books *books, uint32_t gpu) {
  struct books_gpu *mine = &books->gpu[gpu];
  struct sim_holding *holding = &books->node.state->slot[books->slot].holding[gpu];
  raise(&holding->peak[SIM_PHYSICAL], mine->held[SIM_PHYSICAL] + mine->shared);
  raise(&holding->peak[SIM_REQUESTED], mine->held[SIM_REQUESTED] + mine->shared);
}

bool books_change(struct books *books, uint32_t gpu, struct books_delta delta) {
  struct books_gpu *mine = &books->gpu[gpu];
  uint64_t pages = mine->pages + (uint64_t)delta.pages;
  uint64_t packed = mine->packed + (uint64_t)delta.packed;
  uint64_t physical = pages + (packed + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
  uint64_t requested = mine->held[SIM_REQUESTED] + (uint64_t)delta.requested;
  struct sim_change change = {.before = {mine->held[SIM_PHYSICAL], mine->held[SIM_REQUESTED]},
                              .after = {physical, requested}};
  if (!move_slot(books, books->slot, gpu, change)) {
    return false;
  }
  mine->held[SIM_PHYSICAL] = physical;
  mine->held[SIM_REQUESTED] = requested;
  mine->pages = pages;
  mine->packed = packed;
  raise_own_peaks(books, gpu);
  return true;
}

bool books_change_shared(struct books *books, uint32_t gpu, uint32_t slot, uint64_t before, uint64_t after) {
  struct sim_change change = {.before = {before, before}, .after = {after, after}};
  if (!move_slot(books, slot, gpu, change)) {
    return false;
  }
  books->gpu[gpu].shared += after - before;
  raise_own_peaks(books, gpu);
  return true;
}

void books_set_contexts(struct books *books, uint32_t gpu, uint32_t contexts) {
  atomic_store(&books->node.state->slot[books->slot].holding[gpu].contexts, contexts);
}

uint32_t books_contexts(const struct books *books, uint32_t gpu) {
  return atomic_load(&books->node.state->slot[books->slot].holding[gpu].contexts);
}

uint64_t books_free(const struct books *books, uint32_t gpu) {
  struct sim_state *state = books->node.state;
  slots_sweep(&books->node, gpu, SIM_ANY, books->slot);
  uint32_t part = books->node.part;
  return mig_memory(state, gpu, part) - meter_read(mig_meter(state, gpu, part)).used;
}

void books_leave(struct books *books) {
  struct sim_slot *slot = &books->node.state->slot[books->slot];
  slots_reap(&books->node, books->slot, atomic_load(&slot->life));
}
