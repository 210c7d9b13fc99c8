/* SPDX-License-Identifier: Apache-2.0
 *
 * A meter counts bytes and remembers their highest sum, for many processes,
 * any of which may be stopped or killed between two instructions.
 *
 * One 128-bit word holds used, peak, and which slot changed it last by which
 * operation. Used and peak therefore change together, and after a death
 * anybody can tell whether the last operation of the dead took place. No call
 * waits for another process; all are thread safe, except that one process's
 * operations on one GPU must follow one another.
 */
#ifndef SIM_METER_H
#define SIM_METER_H

#include <stdbool.h>

#include "layout.h"

enum meter_answer {
  METER_MOVED,
  METER_FULL, /* would exceed the limit; nothing changed */
  METER_PEAK, /* would raise the peak, which the caller did not allow; nothing changed */
};

struct meter_move {
  struct sim_state *state;
  struct sim_meter *meter;
  uint32_t slot; /* whose operation */
  uint32_t gpu;
  enum sim_which which;
  uint64_t limit;
  bool may_raise_peak;
};

struct meter_value {
  uint64_t used;
  uint64_t peak;
};

struct meter_value meter_read(struct sim_meter *meter);

/* Carry out the slot's operation begun last. Call for the slot's owner only. */
enum meter_answer meter_apply(const struct meter_move *move);

/* What the slot's process holds by this meter: an operation that is under way counts once it took place. */
uint64_t meter_held(const struct meter_move *move);

/* Take back all that the dead process in the slot holds. Any number of processes may do so at the
 * same time, each may die of it; it is taken back once. Does nothing once the slot's life is over. */
void meter_withdraw(const struct meter_move *move, uint64_t life);

/* Forget the slot as last writer, so that it can be taken by the next process. */
void meter_detach(const struct meter_move *move);

/* Let the peak start anew at what is used now. */
void meter_reset_peak(struct sim_meter *meter);

/* Set to zero if nothing is used. */
void meter_clear(struct sim_meter *meter);

#endif
