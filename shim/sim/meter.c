/* SPDX-License-Identifier: Apache-2.0
 *
 * The protocol. A process first writes down its operation number s (holding.seq,
 * change[s & 1]), then swaps each meter to a word that carries (slot, s). Whoever
 * overwrites the word of another slot first writes s into that slot's `done`.
 * So an operation took place if and only if the word still carries it or `done`
 * equals it. A helper writes `done` by compare-and-swap with a value that it read
 * before it saw the word unchanged: a late write fails instead of going back.
 *
 * A sweeper acts as the dead process, with operation s + 1: "back to nothing".
 */
#include "meter.h"

__extension__ typedef unsigned __int128 word_t;

#define USED_BITS 42
#define SLOT_BITS 12
#define USED_MASK ((1ULL << USED_BITS) - 1)
#define SLOT_MASK ((1U << SLOT_BITS) - 1)

_Static_assert(SIM_SLOTS <= SLOT_MASK, "a slot number fits into a meter");

static word_t pack(uint64_t used, uint64_t peak, uint32_t slot, uint32_t seq) {
  word_t word = used;
  word |= (word_t)peak << USED_BITS;
  word |= (word_t)slot << (2 * USED_BITS);
  word |= (word_t)seq << (2 * USED_BITS + SLOT_BITS);
  return word;
}

static uint64_t used_of(word_t word) {
  return (uint64_t)word & USED_MASK;
}
static uint64_t peak_of(word_t word) {
  return (uint64_t)(word >> USED_BITS) & USED_MASK;
}
static uint32_t slot_of(word_t word) {
  return (uint32_t)(word >> (2 * USED_BITS)) & SLOT_MASK;
}
static uint32_t seq_of(word_t word) {
  return (uint32_t)(word >> (2 * USED_BITS + SLOT_BITS));
}

static word_t swap(struct sim_meter *meter, word_t expected, word_t wanted) {
  return __sync_val_compare_and_swap((volatile word_t *)meter->half, expected, wanted);
}

static word_t load(struct sim_meter *meter) {
  return swap(meter, 0, 0);
}

/* Cheap, but the halves may belong to different moments: good for a compare-and-swap only. */
static word_t guess(const struct sim_meter *meter) {
  return (word_t)meter->half[1] << 64 | meter->half[0];
}

struct meter_value meter_read(struct sim_meter *meter) {
  word_t word = load(meter);
  return (struct meter_value){.used = used_of(word), .peak = peak_of(word)};
}

static struct sim_holding *holding_of(const struct meter_move *move, uint32_t slot) {
  return &move->state->slot[slot].holding[move->gpu];
}

static enum sim_measure measure_of(enum sim_which which) {
  return which == SIM_GROUP_REQUESTED ? SIM_REQUESTED : SIM_PHYSICAL;
}

/* Record that the operation in `word` took place. False: the word or the record has moved on. */
static bool help(const struct meter_move *move, word_t word) {
  uint32_t seq = seq_of(word);
  _Atomic uint32_t *done = &holding_of(move, slot_of(word))->done[move->which];
  uint32_t known = atomic_load(done);
  if (load(move->meter) != word) {
    return false;
  }
  return known == seq || atomic_compare_exchange_strong(done, &known, seq);
}

enum meter_answer meter_apply(const struct meter_move *move) {
  struct sim_holding *holding = holding_of(move, move->slot);
  uint64_t seq = atomic_load_explicit(&holding->seq, memory_order_relaxed);
  const struct sim_change *change = &holding->change[seq & 1];
  enum sim_measure measure = measure_of(move->which);
  uint64_t before = change->before[measure];
  uint64_t after = change->after[measure];
  if (before == after) {
    return METER_MOVED;
  }
  for (word_t word = guess(move->meter);;) {
    uint64_t used = used_of(word) - before + after;
    uint64_t peak = peak_of(word);
    if (after > before && (used > move->limit || (used > peak && !move->may_raise_peak))) {
      word_t seen = load(move->meter);
      if (seen == word) {
        return used > move->limit ? METER_FULL : METER_PEAK;
      }
      word = seen;
      continue;
    }
    if (slot_of(word) != move->slot && slot_of(word) != 0 && !help(move, word)) {
      word = load(move->meter);
      continue;
    }
    word_t wanted = pack(used, used > peak ? used : peak, move->slot, (uint32_t)seq);
    word_t seen = swap(move->meter, word, wanted);
    if (seen == word) {
      return METER_MOVED;
    }
    word = seen;
  }
}

/* How often to look again while the process goes on working. */
#define HELD_LOOKS 100

uint64_t meter_held(const struct meter_move *move) {
  struct sim_holding *holding = holding_of(move, move->slot);
  enum sim_measure measure = measure_of(move->which);
  uint64_t bytes = 0;
  for (int look = 0; look < HELD_LOOKS; look++) {
    uint64_t seq = atomic_load(&holding->seq);
    const struct sim_change *change = &holding->change[seq & 1];
    uint64_t before = change->before[measure];
    uint64_t after = change->after[measure];
    word_t word = load(move->meter); /* before `done` */
    bool ours = slot_of(word) == move->slot && seq_of(word) == (uint32_t)seq;
    bytes = ours || atomic_load(&holding->done[move->which]) == (uint32_t)seq ? after : before;
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load(&holding->seq) == seq) {
      break;
    }
  }
  return bytes;
}

void meter_withdraw(const struct meter_move *move, uint64_t life) {
  struct sim_slot *slot = &move->state->slot[move->slot];
  struct sim_holding *holding = &slot->holding[move->gpu];
  enum sim_measure measure = measure_of(move->which);
  for (;;) {
    word_t word = load(move->meter); /* before all else that is read here */
    uint32_t done = atomic_load(&holding->done[move->which]);
    uint64_t seq = atomic_load(&holding->seq);
    const struct sim_change *change = &holding->change[seq & 1];
    uint32_t last = (uint32_t)seq;
    bool ours = slot_of(word) == move->slot;
    bool swept = (ours && seq_of(word) == last + 1) || done == last + 1;
    bool happened = (ours && seq_of(word) == last) || done == last;
    uint64_t bytes = happened ? change->after[measure] : change->before[measure];
    atomic_thread_fence(memory_order_acquire); /* all of the above was of this life, if it is not over now */
    if (atomic_load(&slot->life) != life || swept || bytes == 0) {
      return;
    }
    if (slot_of(word) != 0 && !help(move, word)) {
      continue;
    }
    word_t wanted = pack(used_of(word) - bytes, peak_of(word), move->slot, last + 1);
    if (swap(move->meter, word, wanted) == word) {
      return;
    }
  }
}

void meter_detach(const struct meter_move *move) {
  for (;;) {
    word_t word = load(move->meter);
    if (slot_of(word) != move->slot) {
      return;
    }
    if (!help(move, word)) {
      continue;
    }
    uint32_t serial = atomic_fetch_add(&move->state->serial, 1);
    if (swap(move->meter, word, pack(used_of(word), peak_of(word), 0, serial)) == word) {
      return;
    }
  }
}

void meter_reset_peak(struct sim_meter *meter) {
  for (word_t word = load(meter);;) {
    /* The last writer and its operation stay as they are: only the peak changes. */
    word_t wanted = pack(used_of(word), used_of(word), slot_of(word), seq_of(word));
    word_t seen = swap(meter, word, wanted);
    if (seen == word) {
      return;
    }
    word = seen;
  }
}

void meter_clear(struct sim_meter *meter) {
  word_t word = load(meter);
  if (used_of(word) == 0) {
    swap(meter, word, 0);
  }
}
