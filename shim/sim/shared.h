/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that may outlive the process that made it: exportable allocations and
 * pools. Each has a slot of its own in the state, which lives as long as any
 * process or any exported descriptor refers to it.
 *
 * A reference is a read lock (OFD) on byte SLOT of the node's file `shared`: an
 * exported descriptor holds it directly, a process through a mapping, which no
 * child inherits. So the kernel counts references, also those of the dead and
 * those that lie in a socket's queue. Only the maker changes what a slot holds.
 */
#ifndef SIM_SHARED_H
#define SIM_SHARED_H

#include "books.h"

/* One process's reference. Zeroed = none. */
struct shared {
  uint32_t slot;
  uint64_t life;
  void *anchor;  /* the mapping that holds the lock */
  bool made;     /* by this process */
  uint64_t held; /* bytes, as its maker knows them; 0 for imports */
};

/* A new slot of this kind on a GPU, which holds nothing yet. False: no slots, or the node has no file
 * `shared`. */
bool shared_make(struct books *books, struct sim_shared what, struct shared *made);

/* The maker's share of the GPU becomes `bytes`. False: the GPU is full, nothing has changed. */
bool shared_set(struct books *books, struct shared *shared, uint64_t bytes);

/* A descriptor that another process can import; -1 if there is none to be had. */
int shared_export(const struct books *books, const struct shared *shared);

/* Refer to what a descriptor stands for; false: it is not one of ours, not of this kind, or has ended. */
bool shared_import(const struct books *books, int fd, enum sim_kind kind, struct shared *imported);

/* What a reference stands for. */
const struct sim_shared *shared_about(const struct books *books, const struct shared *shared);

/* Give the reference up; if it was the last, the memory is free when this returns. What its maker gives up
 * while others refer to it is nobody's, but still of the GPU and of the group. */
void shared_drop(struct books *books, struct shared *shared);

/* Whether anybody refers to the slot. */
bool shared_alive(const struct node *node, uint32_t slot);

/* Name of the file below the node's folder. */
#define SIM_SHARED_FILE "shared"

#endif
