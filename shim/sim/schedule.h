/* SPDX-License-Identifier: Apache-2.0
 *
 * The time of a GPU, shared by the processes of a node. One process has it at
 * a time, in turns of a time slice while others wait, as GPUs do it without
 * MPS. Nothing runs in the background: whoever looks works out what happened
 * since somebody looked last. So a stopped process's work goes on, a dead one's
 * ends when somebody notices, and nobody waits for anybody's instructions.
 *
 * A process's own clock on a GPU is the GPU time that it has received: work
 * submitted gets its place on that clock at once and for good, and the history
 * of turns says later at which moment a place was reached.
 *
 * Functions that take a `struct schedule_view` want its owner's lock held.
 */
#ifndef SIM_SCHEDULE_H
#define SIM_SCHEDULE_H

#include "node.h"

#define SCHEDULE_SLICE_NS                                                                                    \
  2000000ULL /* NVIDIA's default time slice is about 2 ms (nvidia-smi compute-policy) */

/* A stretch of the process's clock and when it passed. */
struct schedule_piece {
  uint64_t end; /* on the process's clock */
  uint64_t end_ns;
  uint64_t length;
};

/* One process's view of one GPU. Zeroed is unused. */
struct schedule_view {
  const struct node *node;
  uint32_t slot;
  uint32_t gpu;
  uint64_t seen;                 /* turns read from the history */
  struct schedule_piece *pieces; /* ring of SCHEDULE_PIECES, the first at piece_first */
  uint64_t piece_first, piece_next;
};

/* CLOCK_MONOTONIC in ns. */
uint64_t schedule_now(void);

/* Begin with nothing wanted. False: no memory. */
bool schedule_join(struct schedule_view *view, const struct node *node, uint32_t slot, uint32_t gpu);

/* Settle what happened until `now`; returns the process's clock. */
uint64_t schedule_received(struct schedule_view *view, uint64_t now);

/* Want GPU time up to the place `wanted` on the own clock; call after schedule_received of the same moment.
 * `step_ns`: how long the last kernel is. */
void schedule_want(struct schedule_view *view, uint64_t wanted, uint32_t step_ns);

/* When the place was reached; it must have been. Places older than the history get its beginning. */
uint64_t schedule_time_of(struct schedule_view *view, uint64_t place);

/* How long to sleep before the place can have been reached, at least 1 ns. */
uint64_t schedule_sleep_ns(struct schedule_view *view, uint64_t place, uint64_t now);

/* --- for readers without a view --- */

/* Settle what happened on the GPU until now; `self` is the caller's own slot, or 0. */
void schedule_settle(const struct node *node, uint32_t gpu, uint32_t self, uint64_t now);

/* The turn that is not closed, and what a slot had received before it. */
struct schedule_turn {
  uint64_t number;
  uint64_t start;
  uint64_t total;
  bool own;
  bool idle;
};
struct schedule_turn schedule_turn(const struct node *node, uint32_t slot, uint32_t gpu);

/* A closed turn; false: forgotten. */
struct schedule_past {
  uint64_t start;
  uint32_t owner;
  uint32_t length;
};
bool schedule_past(const struct node *node, uint32_t slot, uint32_t gpu, uint64_t number,
                   struct schedule_past *past);

/* Whose turns a slot is in: the GPU's, or of an MPS client with a part of the SMs its own. */
struct sim_schedule *schedule_of(const struct node *node, uint32_t slot, uint32_t gpu);

/* GPU time that a slot has received, ever. */
uint64_t schedule_total(const struct node *node, uint32_t slot, uint32_t gpu);

/* Busy ns of a GPU, or of a slot on it, in one period of SIM_PERIOD_NS; 0 if that is too long ago. */
uint64_t schedule_busy(const struct node *node, uint32_t gpu, uint64_t period);
uint64_t schedule_used(const struct node *node, uint32_t slot, uint32_t gpu, uint64_t period);

#endif
