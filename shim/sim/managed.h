/* SPDX-License-Identifier: Apache-2.0
 *
 * Managed memory: host memory at first, and on a GPU page by page (2 MiB) as
 * far as it was prefetched there, or filled or copied to by a driver call in a
 * context of that GPU. Kernels do not touch it: nobody knows what they use.
 *
 * On a full GPU this process's other managed pages are evicted to the host
 * (cuda.h, cuMemPrefetchAsync); what then still has no room stays there, too.
 * All want the driver's lock held.
 */
#ifndef SIM_MANAGED_H
#define SIM_MANAGED_H

#include "memory.h"

/* An allocation, or a chunk of a managed pool. */
struct managed {
  struct managed *previous, *next;
  CUcontext context; /* of an allocation; NULL: a chunk */
  uintptr_t base;
  size_t size;
  uint8_t *where;                /* by page: 0 = not on a GPU, else 1 + its number in the state */
  uint32_t resident[SIM_GPUS];   /* pages */
  bool read_mostly;              /* advice is kept for the whole of it */
  uint32_t accessed_by;          /* bit per device */
  CUmemLocation preferred, last; /* type NONE: none */
};

/* NULL: no host memory. */
struct managed *managed_new(CUcontext context, uintptr_t base, size_t size);

/* Give back all that is on GPUs, and the record. */
void managed_end(struct managed *managed);

/* The record around a range; NULL: not, or not all of it, managed. */
struct managed *managed_around(uintptr_t address, size_t size);

/* Bring the range to a GPU, as far as there is room. */
void managed_touch(struct managed *managed, uintptr_t address, size_t size, uint32_t gpu);

/* Bring all pages that the range touches (`whole`: that lie within it) back to the host. */
void managed_leave(struct managed *managed, uintptr_t address, size_t size, bool whole);

#endif
