/* SPDX-License-Identifier: Apache-2.0
 *
 * A process's own clock on a GPU: wanting time, and when a place was reached.
 */
#include <stdlib.h>
#include <time.h>

#include "schedule.h"

#define PIECES    16384U /* remembered; a process alone on its GPU makes one long piece */
#define READ_EACH 1024U  /* turns: well before the node forgets them */

static struct sim_pace *pace_of(const struct schedule_view *view) {
  return &view->node->state->pace[view->slot][view->gpu];
}

bool schedule_join(struct schedule_view *view, const struct node *node, uint32_t slot, uint32_t gpu) {
  struct schedule_piece *pieces = malloc(PIECES * sizeof *pieces);
  if (!pieces) {
    return false;
  }
  *view = (struct schedule_view){.node = node, .slot = slot, .gpu = gpu, .pieces = pieces};
  schedule_settle(node, gpu, slot, schedule_now());
  struct schedule_turn turn = schedule_turn(node, slot, gpu);
  atomic_store(&pace_of(view)->wanted, turn.total); /* the slot's last process may have wanted more */
  view->seen = turn.number;
  struct timespec now;
  atomic_store(&pace_of(view)->began_total, turn.total);
  clock_gettime(CLOCK_REALTIME, &now);
  atomic_store(&pace_of(view)->began_ns, (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec);
  return true;
}

static void note(struct schedule_view *view, uint64_t end, const struct schedule_past *past) {
  uint64_t end_ns = past->start + past->length;
  if (view->piece_next > view->piece_first) {
    struct schedule_piece *last = &view->pieces[(view->piece_next - 1) % PIECES];
    if (last->end_ns == past->start && last->end + past->length == end) {
      *last = (struct schedule_piece){.end = end, .end_ns = end_ns, .length = last->length + past->length};
      return;
    }
  }
  view->pieces[view->piece_next++ % PIECES] =
      (struct schedule_piece){.end = end, .end_ns = end_ns, .length = past->length};
  view->piece_first += view->piece_next - view->piece_first > PIECES;
}

/* Take over our turns of the node's history. Where they end on our clock is known of the last one. */
static void read_history(struct schedule_view *view, struct schedule_turn turn) {
  struct schedule_past past;
  uint64_t first = turn.number - view->seen > SIM_TURNS ? turn.number - SIM_TURNS : view->seen;
  uint64_t place = turn.total;
  for (uint64_t number = first; number < turn.number; number++) {
    bool ours = schedule_past(view->node, view->slot, view->gpu, number, &past) && past.owner == view->slot;
    place -= ours ? past.length : 0;
  }
  for (uint64_t number = first; number < turn.number; number++) {
    if (schedule_past(view->node, view->slot, view->gpu, number, &past) && past.owner == view->slot) {
      place += past.length;
      note(view, place, &past);
    }
  }
  view->seen = turn.number;
}

uint64_t schedule_received(struct schedule_view *view, uint64_t now) {
  schedule_settle(view->node, view->gpu, view->slot, now);
  struct schedule_turn turn = schedule_turn(view->node, view->slot, view->gpu);
  if (turn.number - view->seen > READ_EACH) {
    read_history(view, turn);
  }
  if (!turn.own) {
    return turn.total;
  }
  uint64_t wanted = atomic_load_explicit(&pace_of(view)->wanted, memory_order_relaxed);
  uint64_t total = turn.total + (now > turn.start ? now - turn.start : 0);
  return total < wanted ? total : wanted > turn.total ? wanted : turn.total;
}

void schedule_want(struct schedule_view *view, uint64_t wanted, uint32_t step_ns) {
  struct sim_pace *pace = pace_of(view);
  struct sim_schedule *schedule = schedule_of(view->node, view->slot, view->gpu);
  _Atomic uint64_t *word = &schedule->wants[view->slot / 64];
  uint64_t bit = 1ULL << view->slot % 64;
  atomic_store_explicit(&pace->step_ns, step_ns, memory_order_relaxed);
  atomic_store(&pace->wanted, wanted);
  if (!(atomic_load(word) & bit)) {
    atomic_fetch_or(word, bit);
  }
  if (schedule_turn(view->node, view->slot, view->gpu).idle) {
    schedule_settle(view->node, view->gpu, view->slot, schedule_now());
  }
}

uint64_t schedule_time_of(struct schedule_view *view, uint64_t place) {
  struct schedule_turn turn = schedule_turn(view->node, view->slot, view->gpu);
  if (turn.number != view->seen) {
    read_history(view, turn);
  }
  if (place > turn.total) {
    return turn.start + (place - turn.total);
  }
  uint64_t low = view->piece_first;
  uint64_t high = view->piece_next;
  while (low < high) {
    uint64_t middle = low + (high - low) / 2;
    if (view->pieces[middle % PIECES].end < place) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == view->piece_next) {
    return turn.start;
  }
  const struct schedule_piece *piece = &view->pieces[low % PIECES];
  uint64_t back = piece->end - place;
  return piece->end_ns - (back < piece->length ? back : piece->length);
}

uint64_t schedule_sleep_ns(struct schedule_view *view, uint64_t place, uint64_t now) {
  struct schedule_turn turn = schedule_turn(view->node, view->slot, view->gpu);
  uint64_t received = turn.total + (turn.own && now > turn.start ? now - turn.start : 0);
  uint64_t left = place > received ? place - received : 1;
  if (turn.own) {
    return left;
  }
  const struct sim_schedule *schedule = schedule_of(view->node, view->slot, view->gpu);
  uint64_t slice = atomic_load_explicit(&schedule->slice_ns, memory_order_relaxed);
  uint64_t end = turn.start + (slice ? slice : 10000);
  return end > now ? end - now : 1;
}
