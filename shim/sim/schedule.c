/* SPDX-License-Identifier: Apache-2.0
 *
 * How turns are worked out. The turn word names the owner and the start of the
 * turn that nobody has closed yet. To close it: (1) its length is decided by
 * whoever swaps it into the owner's `received`, together with the turn's number;
 * all others take it from there; (2) it is written into the history; (3) the
 * turn word is swapped to the next owner, starting where this one ended. Each
 * step can be repeated by anybody, so it does not matter who dies between them;
 * only the per-period counters behind utilisation can lose that one turn.
 *
 * Who wants time first settles what happened until now and then says so:
 * therefore nobody can be given time of before he wanted it.
 */
#define _GNU_SOURCE
#include "schedule.h"

#include <time.h>

#include "slots.h"

__extension__ typedef unsigned __int128 word_t;

#define OWNER_BITS   12
#define OWNER_MASK   ((1U << OWNER_BITS) - 1)
#define MOST_NS      1000000000ULL /* of one turn: its length has 32 bits */
#define LOOK_EACH_NS 10000000ULL   /* whether a process that waits its turn is alive */

_Static_assert(SIM_SLOTS <= 2048, "a bit for each slot");

struct turn {
  uint64_t start;
  uint64_t number;
  uint32_t owner; /* 0 = idle */
};

struct received {
  uint64_t total;
  uint32_t number; /* of the turn counted last, low bits */
  uint32_t length; /* of that turn */
};

static word_t join(uint64_t low, uint64_t high) {
  return (word_t)high << 64 | low;
}

static bool swap(struct sim_pair *pair, word_t expected, word_t wanted) {
  return __sync_bool_compare_and_swap((volatile word_t *)pair->half, expected, wanted);
}

/* The second half never takes a value twice: the first belongs to it if it is the same before and after. */
static word_t load(const struct sim_pair *pair) {
  for (;;) {
    uint64_t high = pair->half[1];
    atomic_thread_fence(memory_order_acquire);
    uint64_t low = pair->half[0];
    atomic_thread_fence(memory_order_acquire);
    if (pair->half[1] == high) {
      return join(low, high);
    }
  }
}

static struct turn turn_of(word_t word) {
  uint64_t high = (uint64_t)(word >> 64);
  return (struct turn){
      .start = (uint64_t)word, .number = high >> OWNER_BITS, .owner = (uint32_t)high & OWNER_MASK};
}
static word_t turn_word(struct turn turn) {
  return join(turn.start, turn.number << OWNER_BITS | turn.owner);
}

static struct received received_of(word_t word) {
  uint64_t high = (uint64_t)(word >> 64);
  return (struct received){
      .total = (uint64_t)word, .number = (uint32_t)(high >> 32), .length = (uint32_t)high};
}
static word_t received_word(struct received received) {
  return join(received.total, (uint64_t)received.number << 32 | received.length);
}

uint64_t schedule_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* --- what a settlement needs to know --- */

struct settling {
  const struct node *node;
  struct sim_state *state;
  struct sim_schedule *schedule;
  uint32_t gpu;
  uint32_t self; /* slot that needs no proof of life, or 0 */
};

struct sim_schedule *schedule_of(const struct node *node, uint32_t slot, uint32_t gpu) {
  uint32_t lane = slot ? atomic_load_explicit(&node->state->mps[slot].lane, memory_order_relaxed) : 0;
  return &node->state->schedule[lane ? lane : gpu];
}

static struct settling settling_of(const struct node *node, uint32_t gpu, uint32_t self) {
  struct sim_state *state = node->state;
  return (struct settling){
      .node = node, .state = state, .schedule = schedule_of(node, self, gpu), .gpu = gpu, .self = self};
}

static struct sim_pace *pace_of(const struct settling *settling, uint32_t slot) {
  return &settling->state->pace[slot][settling->gpu];
}

/* Whether the slot's turns are the ones that are settled here. Those of its last process may be left over. */
static bool is_here(const struct settling *settling, uint32_t slot) {
  return schedule_of(settling->node, slot, settling->gpu) == settling->schedule;
}

static uint64_t left_of(const struct settling *settling, uint32_t slot) {
  struct sim_pace *pace = pace_of(settling, slot);
  uint64_t total = received_of(load(&pace->received)).total;
  uint64_t wanted = atomic_load(&pace->wanted);
  bool alive = (atomic_load(&settling->state->slot[slot].life) & 1) && is_here(settling, slot);
  return alive && wanted > total ? wanted - total : 0;
}

/* Clear the slot's bit unless it wants something after all: he who wants looks at the bit afterwards. */
static void forget(const struct settling *settling, uint32_t slot) {
  _Atomic uint64_t *word = &settling->schedule->wants[slot / 64];
  uint64_t bit = 1ULL << slot % 64;
  atomic_fetch_and(word, ~bit);
  if (left_of(settling, slot) > 0) {
    atomic_fetch_or(word, bit);
  }
}

/* Whether the slot wants time; the dead are tidied away, looked for now and then. */
static bool wants(const struct settling *settling, uint32_t slot) {
  static _Atomic uint64_t looked[SIM_SLOTS];
  if (left_of(settling, slot) == 0) {
    forget(settling, slot);
    return false;
  }
  if (slot == settling->self) {
    return true;
  }
  uint64_t now = schedule_now();
  uint64_t last = atomic_load_explicit(&looked[slot], memory_order_relaxed);
  if (now - last < LOOK_EACH_NS) {
    return true;
  }
  atomic_store_explicit(&looked[slot], now, memory_order_relaxed);
  uint64_t life = atomic_load(&settling->state->slot[slot].life);
  if ((life & 1) && !slots_alive(settling->node, slot)) {
    slots_reap(settling->node, slot, life);
  }
  return left_of(settling, slot) > 0;
}

/* The slot after `after` that wants time, in a circle that ends before `after` itself; 0 if there is none. */
static uint32_t next_wanting(const struct settling *settling, uint32_t after) {
  uint32_t words = atomic_load_explicit(&settling->state->slots_used, memory_order_relaxed) / 64 + 1;
  for (uint32_t step = 0; step <= words; step++) {
    uint32_t index = (after / 64 + step) % words;
    uint64_t bits = atomic_load(&settling->schedule->wants[index]);
    if (step == 0) {
      bits &= after % 64 == 63 ? 0 : ~0ULL << (after % 64 + 1);
    } else if (step == words) {
      bits &= (1ULL << after % 64) - 1;
    }
    while (bits) {
      uint32_t slot = index * 64 + (uint32_t)__builtin_ctzll(bits);
      bits &= bits - 1;
      if (wants(settling, slot)) {
        return slot;
      }
    }
  }
  return 0;
}

/* --- closing a turn --- */

static uint64_t slice_of(const struct settling *settling, uint32_t owner) {
  uint64_t slice = atomic_load_explicit(&settling->schedule->slice_ns, memory_order_relaxed);
  if (slice == 0) {
    slice = atomic_load_explicit(&pace_of(settling, owner)->step_ns, memory_order_relaxed);
  }
  return slice < 1000 ? 1000 : slice > MOST_NS ? MOST_NS : slice;
}

/* Length of a turn that ends by `now`; false: it goes on. */
static bool length_of(const struct settling *settling, struct turn turn, uint64_t left, uint64_t now,
                      uint64_t *length) {
  uint64_t elapsed = now > turn.start ? now - turn.start : 0;
  uint64_t slice = slice_of(settling, turn.owner);
  if (!(atomic_load(&settling->state->slot[turn.owner].life) & 1)) {
    *length = elapsed < slice ? elapsed : slice; /* it had the GPU until it was found dead */
    return true;
  }
  if (left <= elapsed && left <= slice) {
    *length = left;
    return true;
  }
  if (elapsed < slice) {
    return false;
  }
  bool alone = next_wanting(settling, turn.owner) == 0;
  uint64_t most = alone ? elapsed - elapsed % slice : slice;
  most = most > MOST_NS ? MOST_NS - MOST_NS % slice : most;
  *length = left < most ? left : most;
  return true;
}

static void add(_Atomic uint64_t *counter, uint64_t period, uint64_t ns) {
  uint64_t old = atomic_load(counter);
  uint64_t fresh;
  do {
    uint32_t known = (uint32_t)(old >> 32);
    if ((int32_t)(known - (uint32_t)period) > 0) {
      return; /* long ago */
    }
    fresh = (known == (uint32_t)period ? old : period << 32) + ns;
  } while (!atomic_compare_exchange_weak(counter, &old, fresh));
}

/* For whoever closed the turn. */
static void count(const struct settling *settling, struct turn turn, uint64_t length) {
  uint64_t end = turn.start + length;
  struct sim_schedule *gpu = &settling->state->schedule[settling->gpu]; /* lanes count there, too */
  atomic_fetch_add_explicit(&gpu->busy_ever, length, memory_order_relaxed);
  for (uint64_t from = turn.start; from < end;) {
    uint64_t period = from / SIM_PERIOD_NS;
    uint64_t until = (period + 1) * SIM_PERIOD_NS;
    until = until < end ? until : end;
    add(&gpu->busy[period % SIM_GPU_PERIODS], period, until - from);
    add(&pace_of(settling, turn.owner)->used[period % SIM_SLOT_PERIODS], period, until - from);
    from = until;
  }
}

#define HISTORY_NUMBER_BITS 20

static void remember(const struct settling *settling, struct turn turn, uint32_t length) {
  struct sim_pair *place = &settling->schedule->history[turn.number % SIM_TURNS];
  uint32_t mask = (1U << HISTORY_NUMBER_BITS) - 1;
  uint64_t high = (uint64_t)length << 32 | (uint64_t)turn.owner << HISTORY_NUMBER_BITS | (turn.number & mask);
  word_t old = load(place);
  uint32_t known = (uint32_t)(uint64_t)(old >> 64) & mask;
  if (((turn.number - known) & mask) <
      1U << (HISTORY_NUMBER_BITS - 1)) { /* else one of later has its place */
    swap(place, old, join(turn.start, high));
  }
}

static void close_turn(const struct settling *settling, word_t word, struct turn turn, uint32_t length) {
  remember(settling, turn, length);
  uint32_t next = next_wanting(settling, turn.owner);
  if (next == 0 && left_of(settling, turn.owner) > 0) {
    next = turn.owner;
  }
  struct turn following = {.start = turn.start + length, .number = turn.number + 1, .owner = next};
  if (swap(&settling->schedule->turn, word, turn_word(following))) {
    count(settling, turn, length);
  }
}

/* One step towards `now`; false: settled. */
static bool settle_step(const struct settling *settling, uint64_t now) {
  word_t word = load(&settling->schedule->turn);
  struct turn turn = turn_of(word);
  if (turn.owner == 0) {
    uint32_t next = next_wanting(settling, 0);
    struct turn first = {
        .start = now > turn.start ? now : turn.start, .number = turn.number + 1, .owner = next};
    if (next != 0) {
      swap(&settling->schedule->turn, word, turn_word(first));
    }
    return false;
  }
  if (!is_here(settling, turn.owner)) {
    struct turn none = {.start = now > turn.start ? now : turn.start, .number = turn.number + 1};
    swap(&settling->schedule->turn, word, turn_word(none));
    return true;
  }
  struct sim_pace *pace = pace_of(settling, turn.owner);
  word_t counted = load(&pace->received);
  struct received received = received_of(counted);
  if (received.number != (uint32_t)turn.number) {
    uint64_t length;
    if (!length_of(settling, turn, left_of(settling, turn.owner), now, &length)) {
      return false;
    }
    struct received more = {
        .total = received.total + length, .number = (uint32_t)turn.number, .length = (uint32_t)length};
    /* The number in the old word may be of any turn before: no other can have this one. */
    if (load(&settling->schedule->turn) != word || !swap(&pace->received, counted, received_word(more))) {
      return true;
    }
    received = more;
  }
  close_turn(settling, word, turn, received.length);
  return true;
}

static void settle(const struct settling *settling, uint64_t now) {
  while (settle_step(settling, now)) {
  }
}

void schedule_settle(const struct node *node, uint32_t gpu, uint32_t self, uint64_t now) {
  struct settling settling = settling_of(node, gpu, self);
  settle(&settling, now);
}

/* Settled time, plus what the turn under way has given until `now`. */
static uint64_t total_at(const struct settling *settling, uint32_t slot, uint64_t now) {
  for (;;) {
    word_t word = load(&settling->schedule->turn);
    struct turn turn = turn_of(word);
    struct received received = received_of(load(&pace_of(settling, slot)->received));
    uint64_t total = received.total;
    if (turn.owner == slot && received.number != (uint32_t)turn.number) {
      uint64_t left = left_of(settling, slot);
      uint64_t elapsed = now > turn.start ? now - turn.start : 0;
      total += elapsed < left ? elapsed : left;
    }
    if (load(&settling->schedule->turn) == word) {
      return total;
    }
  }
}

struct schedule_turn schedule_turn(const struct node *node, uint32_t slot, uint32_t gpu) {
  struct settling settling = settling_of(node, gpu, slot);
  for (;;) {
    word_t word = load(&settling.schedule->turn);
    struct turn turn = turn_of(word);
    struct received received = received_of(load(&pace_of(&settling, slot)->received));
    bool open = received.number != (uint32_t)turn.number;
    if (load(&settling.schedule->turn) == word) {
      return (struct schedule_turn){.number = turn.number,
                                    .start = turn.start,
                                    .own = turn.owner == slot,
                                    .idle = turn.owner == 0,
                                    .total = open ? received.total : received.total - received.length};
    }
  }
}

bool schedule_past(const struct node *node, uint32_t slot, uint32_t gpu, uint64_t number,
                   struct schedule_past *past) {
  word_t word = load(&schedule_of(node, slot, gpu)->history[number % SIM_TURNS]);
  uint64_t high = (uint64_t)(word >> 64);
  uint32_t mask = (1U << HISTORY_NUMBER_BITS) - 1;
  *past = (struct schedule_past){.start = (uint64_t)word,
                                 .owner = (uint32_t)(high >> HISTORY_NUMBER_BITS) & OWNER_MASK,
                                 .length = (uint32_t)(high >> 32)};
  return ((uint32_t)high & mask) == (number & mask);
}

uint64_t schedule_total(const struct node *node, uint32_t slot, uint32_t gpu) {
  struct settling settling = settling_of(node, gpu, slot);
  settling.self = 0; /* the reader proves nobody's life */
  uint64_t now = schedule_now();
  settle(&settling, now);
  return total_at(&settling, slot, now);
}

static uint64_t of_period(_Atomic uint64_t *counter, uint64_t period) {
  uint64_t word = atomic_load(counter);
  return (uint32_t)(word >> 32) == (uint32_t)period ? (uint32_t)word : 0;
}

uint64_t schedule_busy(const struct node *node, uint32_t gpu, uint64_t period) {
  uint64_t busy = of_period(&node->state->schedule[gpu].busy[period % SIM_GPU_PERIODS], period);
  return busy < SIM_PERIOD_NS ? busy : SIM_PERIOD_NS; /* MPS clients run beside one another */
}

uint64_t schedule_used(const struct node *node, uint32_t slot, uint32_t gpu, uint64_t period) {
  return of_period(&node->state->pace[slot][gpu].used[period % SIM_SLOT_PERIODS], period);
}
