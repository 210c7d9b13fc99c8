/* SPDX-License-Identifier: Apache-2.0
 *
 * Who is alive, and what happens to the memory of the dead.
 *
 * POSIX locks of a process vanish when it closes any descriptor of the file:
 * a library that holds a slot must not close its descriptor, nor may another
 * copy of it in the process. Readers (NVML) keep theirs open for ever, too.
 */
#ifndef SIM_SLOTS_H
#define SIM_SLOTS_H

#include "node.h"

#define SIM_ANY UINT32_MAX

/* Take a free slot for this process and join its group; 0 if all are taken. node->fd is replaced, the mapping
 * leaves the child of a fork. */
uint32_t slots_claim(struct node *node, const char *root);

/* Take a free slot for shared memory (shared.h), anchored by a lock on `fd`; 0 if all are taken. */
uint32_t slots_claim_shared(const struct node *node, int fd, const struct sim_shared *shared);

/* Whether the process of this life of the slot still runs, or the memory is still referred to. */
bool slots_alive(const struct node *node, uint32_t slot);

/* Pid of the slot's process as the caller's pid namespace knows it; 0 if it cannot be seen from here. */
unsigned slots_pid(const struct node *node, uint32_t slot);

/* What a living process holds of a GPU, with the shared memory that it made. */
uint64_t slots_held(const struct node *node, uint32_t slot, uint32_t gpu, enum sim_measure measure);

/* Whether a slot's process has memory or a context on a GPU, alive or not. */
bool slots_touches(const struct sim_slot *slot, uint32_t gpu);

/* Free what dead processes hold of a GPU (or SIM_ANY) in a group (or SIM_ANY). `except` is the caller's own
 * slot, or 0. */
void slots_sweep(const struct node *node, uint32_t gpu, uint32_t group, uint32_t except);

/* Give back all that the slot holds and end its life; for a slot of the dead, or the caller's own. */
void slots_reap(const struct node *node, uint32_t slot, uint64_t life);

#endif
