/* SPDX-License-Identifier: Apache-2.0
 *
 * What the families of device memory share. All want the driver's lock held.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "driver.h"
#include "shared.h"
#include "space.h"

/* Charge the GPU. When it is full, the process's own unused pool and graph memory goes back first and the
 * charge is tried again: a program that freed memory can allocate it. False: no room, nothing charged. */
bool memory_charge(uint32_t gpu, struct books_delta delta);

/* The same for exportable memory, which will hold `bytes` in all. */
bool memory_charge_shared(struct shared *shared, uint64_t bytes);

/* Whole pages, of which all was asked for. */
static inline struct books_delta memory_pages(int64_t bytes) {
  return (struct books_delta){.pages = bytes, .requested = bytes};
}

/* What cuMemAlloc charges: from 2 MiB on an allocation has pages of its own, below it shares pages with
 * others of its process; and the opposite. */
struct books_delta memory_allocation(size_t size);
struct books_delta memory_refund(size_t size);

static inline uint64_t memory_round(uint64_t bytes, uint64_t step) {
  return (bytes + step - 1) / step * step;
}

/* cuMemFree of whatever was allocated at the address. INVALID_VALUE: nothing was, or it has been freed. */
CUresult memory_free(uintptr_t address);

/* cuMemFreeAsync: linear and managed memory goes when the stream gets there, other memory at once. */
CUresult memory_free_later(uintptr_t address, CUstream stream);

/* An allocation of cuMemAlloc, its pitched and its managed form ends. */
void memory_release(struct space_block *block);

/* Lock the driver for a call that needs a current context and is not ordered in a stream: a capture may
 * forbid it (STREAM_CAPTURE_UNSUPPORTED). */
CUresult memory_enter(CUcontext *context);

/* Lock the driver for memory work in a stream. *captured: the stream is being captured, the work becomes a
 * node. */
CUresult memory_enter_stream(CUstream stream, bool per_thread, CUcontext *context, bool *captured);

/* What lies around an address: allocation, pool segment, mapping or import. */
struct memory_range {
  uintptr_t base;
  size_t size;
  struct space_block *block;
  enum space_backing *backing; /* of just this range */
  bool host;                   /* the host may use it */
  uint64_t id;
};

/* False: no memory there (reserved addresses without mapping or access are none). */
bool memory_locate(uintptr_t address, struct memory_range *range);

/* Pinned host memory, host.c. */
struct host_range {
  uintptr_t base;
  size_t size;
  CUcontext context;
  uint64_t id;
};

/* False: the address is in none. */
bool host_find(uintptr_t address, struct host_range *range);

#endif
