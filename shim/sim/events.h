/* SPDX-License-Identifier: Apache-2.0
 *
 * What happened to the GPUs of a node, for whoever waits for it: a ring of the
 * last SIM_EVENTS events. Each is one atomic word that carries its own number,
 * so that a writer who dies leaves either nothing or a whole event. Thread safe.
 */
#ifndef SIM_EVENTS_H
#define SIM_EVENTS_H

#include "layout.h"

/* `type` is the position of one of NVML's event bits, `data` (of an XID: its code) has 24 bits. */
struct event {
  uint32_t gpu;
  uint32_t type;
  uint32_t data;
};

/* Never waits for another process. */
void events_add(struct sim_state *state, struct event event);

/* Number of the next event: a reader who starts here sees what is yet to come. */
uint32_t events_next(struct sim_state *state);

/* Read event *number and step to the next; false: not there yet. One that has been overwritten is skipped. */
_Bool events_read(struct sim_state *state, uint32_t *number, struct event *event);

/* Sleep until event `number` is there, or for at most so long. */
void events_wait(struct sim_state *state, uint32_t number, unsigned timeout_ms);

#endif
