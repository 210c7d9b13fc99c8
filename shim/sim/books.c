/* SPDX-License-Identifier: Apache-2.0 */
#include "books.h"

#include "meter.h"
#include "profiles.h"

static struct meter_move move_of(struct books *books, uint32_t gpu, enum sim_which which) {
  struct sim_state *state = books->node.state;
  struct meter_move move = {
      .state = state, .slot = books->slot, .gpu = gpu, .which = which, .limit = UINT64_MAX};
  if (which == SIM_GPU_PHYSICAL) {
    move.meter = &state->gpu[gpu].used;
    move.limit = profile_capacity(state->gpu[gpu].profile);
  } else {
    struct sim_group *group = &state->group[state->slot[books->slot].group];
    move.meter = &group->gpu[gpu].measure[which == SIM_GROUP_PHYSICAL ? SIM_PHYSICAL : SIM_REQUESTED];
  }
  return move;
}

/* Before a sum is refused or becomes a peak, the memory of the dead must be out of it. */
static bool carry_out(struct books *books, uint32_t gpu, enum sim_which which) {
  struct meter_move move = move_of(books, gpu, which);
  if (meter_apply(&move) == METER_MOVED) {
    return true;
  }
  uint32_t group = which == SIM_GPU_PHYSICAL ? SIM_ANY : books->node.state->slot[books->slot].group;
  slots_sweep(&books->node, gpu, group, books->slot);
  move.may_raise_peak = true;
  return meter_apply(&move) == METER_MOVED;
}

static void raise(_Atomic uint64_t *peak, uint64_t value) {
  if (value > atomic_load_explicit(peak, memory_order_relaxed)) {
    atomic_store_explicit(peak, value, memory_order_relaxed);
  }
}

bool books_change(struct books *books, uint32_t gpu, struct books_delta delta) {
  struct books_gpu *mine = &books->gpu[gpu];
  struct sim_holding *holding = &books->node.state->slot[books->slot].holding[gpu];
  uint64_t pages = mine->pages + (uint64_t)delta.pages;
  uint64_t packed = mine->packed + (uint64_t)delta.packed;
  uint64_t physical = pages + (packed + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
  uint64_t requested = mine->held[SIM_REQUESTED] + (uint64_t)delta.requested;

  uint64_t seq = atomic_load_explicit(&holding->seq, memory_order_relaxed) + 1;
  holding->change[seq & 1] = (struct sim_change){
      .before = {mine->held[SIM_PHYSICAL], mine->held[SIM_REQUESTED]}, .after = {physical, requested}};
  atomic_store_explicit(&holding->seq, seq, memory_order_release);
  for (enum sim_which which = 0; which < SIM_METERS; which++) {
    if (!carry_out(books, gpu, which)) {
      return false; /* only the first meter has a limit: none has moved */
    }
  }
  *mine = (struct books_gpu){.held = {physical, requested}, .pages = pages, .packed = packed};
  raise(&holding->peak[SIM_PHYSICAL], physical);
  raise(&holding->peak[SIM_REQUESTED], requested);
  return true;
}

void books_set_contexts(struct books *books, uint32_t gpu, uint32_t contexts) {
  atomic_store(&books->node.state->slot[books->slot].holding[gpu].contexts, contexts);
}

uint64_t books_free(const struct books *books, uint32_t gpu) {
  struct sim_gpu *described = &books->node.state->gpu[gpu];
  slots_sweep(&books->node, gpu, SIM_ANY, books->slot);
  return profile_capacity(described->profile) - meter_read(&described->used).used;
}

void books_leave(struct books *books) {
  struct sim_slot *slot = &books->node.state->slot[books->slot];
  slots_reap(&books->node, books->slot, atomic_load(&slot->life));
}
