/* SPDX-License-Identifier: Apache-2.0
 *
 * This process's side of the books: what it holds of each GPU, and how that
 * changes. Not thread safe: the caller's lock orders the operations.
 */
#ifndef SIM_BOOKS_H
#define SIM_BOOKS_H

#include "slots.h"

struct books_gpu {
  uint64_t held[SIM_MEASURES];
  uint64_t pages;  /* bytes in pages of their own: contexts and large allocations */
  uint64_t packed; /* bytes of small allocations, which share pages */
  uint64_t shared; /* bytes of our exportable memory, which has slots of its own: shared.h */
};

struct books {
  struct node node;
  uint32_t slot;
  struct books_gpu gpu[SIM_GPUS];
};

/* What one operation adds to (or takes from) the process's holding. */
struct books_delta {
  int64_t pages;
  int64_t packed;
  int64_t requested;
};

/* Carry the operation out. False: the GPU is full, nothing has changed. Giving back never fails. */
bool books_change(struct books *books, uint32_t gpu, struct books_delta delta);

/* The same for one of our own slots of shared memory, which holds `before` and will hold `after` bytes. */
bool books_change_shared(struct books *books, uint32_t gpu, uint32_t slot, uint64_t before, uint64_t after);

void books_set_contexts(struct books *books, uint32_t gpu, uint32_t contexts);

uint32_t books_contexts(const struct books *books, uint32_t gpu);

/* Bytes of the GPU that nobody has, the dead not counted. */
uint64_t books_free(const struct books *books, uint32_t gpu);

/* Give everything back and leave the node. */
void books_leave(struct books *books);

#endif
