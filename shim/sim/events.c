/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "events.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TYPE_BITS 5
#define GPU_BITS  5
#define DATA_BITS 22

_Static_assert((SIM_EVENTS & (SIM_EVENTS - 1)) == 0, "numbers wrap around");
_Static_assert(SIM_GPUS <= 1U << GPU_BITS, "a GPU fits into an event");

static uint64_t pack(uint32_t number, struct event event) {
  uint64_t word = event.data & ((1U << DATA_BITS) - 1);
  word = word << TYPE_BITS | (event.type & ((1U << TYPE_BITS) - 1));
  word = word << GPU_BITS | event.gpu;
  return word << 32 | number;
}

static struct event unpack(uint64_t word) {
  uint64_t content = word >> 32;
  return (struct event){
      .gpu = (uint32_t)content & ((1U << GPU_BITS) - 1),
      .type = (uint32_t)(content >> GPU_BITS) & ((1U << TYPE_BITS) - 1),
      .data = (uint32_t)(content >> (GPU_BITS + TYPE_BITS)),
  };
}

/* Events are numbered from 1. The count may be one behind the ring while a writer stands between its two
 * steps: whoever comes next takes the second one for it. */
uint32_t events_next(struct sim_state *state) {
  for (;;) {
    uint32_t count = atomic_load(&state->events);
    uint64_t word = atomic_load(&state->event[(count + 1) % SIM_EVENTS]);
    if ((uint32_t)word != count + 1) {
      return count + 1;
    }
    atomic_compare_exchange_strong(&state->events, &count, count + 1);
  }
}

void events_add(struct sim_state *state, struct event event) {
  for (;;) {
    uint32_t number = events_next(state);
    _Atomic uint64_t *place = &state->event[number % SIM_EVENTS];
    uint64_t old = atomic_load(place);
    if ((int32_t)((uint32_t)old - number) < 0 &&
        atomic_compare_exchange_strong(place, &old, pack(number, event))) {
      break;
    }
  }
  events_next(state);
  syscall(SYS_futex, &state->events, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

_Bool events_read(struct sim_state *state, uint32_t *number, struct event *event) {
  for (;;) {
    uint64_t word = atomic_load(&state->event[*number % SIM_EVENTS]);
    int32_t ahead = (int32_t)((uint32_t)word - *number);
    if (ahead < 0) {
      return false;
    }
    if (ahead == 0) {
      *event = unpack(word);
      ++*number;
      return true;
    }
    *number = events_next(state) - SIM_EVENTS;
  }
}

/* A writer may die before it wakes anybody: sleep in short pieces. */
#define PIECE_NS 20000000L

void events_wait(struct sim_state *state, uint32_t number, unsigned timeout_ms) {
  struct timespec piece = {.tv_nsec = PIECE_NS};
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t until = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 + timeout_ms;
  for (;;) {
    uint32_t count = atomic_load(&state->events);
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t left = until - ((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    if ((int32_t)(events_next(state) - number) > 0 || left <= 0) {
      return;
    }
    piece.tv_nsec = left * 1000000 < PIECE_NS ? (long)left * 1000000 : PIECE_NS;
    syscall(SYS_futex, &state->events, FUTEX_WAIT, count, &piece, NULL, 0);
  }
}
