/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools. A pool takes memory from its GPU in steps and keeps it until a
 * synchronisation finds more than its release threshold, or it is trimmed.
 * All want the driver's lock held.
 *
 * Seen on GPUs: a pool's reserved memory grows by multiples of 32 MiB
 * (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT after a first small cuMemAllocAsync).
 */
#ifndef SIM_POOL_H
#define SIM_POOL_H

#include "arena.h"
#include "memory.h"
#include "shared.h"

#define POOL_STEP (32ULL << 20)

enum pool_place { POOL_DEVICE, POOL_HOST, POOL_MANAGED };

struct CUmemPoolHandle_st {
  struct CUmemPoolHandle_st *next; /* of all pools, the destroyed ones with live pointers included */
  struct arena arena;
  CUmemPoolProps props;
  enum pool_place place;
  uint32_t gpu;
  uint64_t threshold;
  uint64_t reserved_high, used_high;
  int reuse[3];    /* attributes 1 to 3 */
  uint32_t access; /* bit per device */
  bool is_default;
  bool destroyed;
  bool imported;
  unsigned imports;     /* live pointers of an imported pool */
  struct shared shared; /* of an exportable or imported pool */
};

/* Whether the handle is one of a pool that was not destroyed. */
bool pool_is(CUmemoryPool pool);

/* Check the properties and make a pool. */
CUresult pool_make(const CUmemPoolProps *props, CUmemoryPool *made);

/* A pool that refers to another process's. */
CUresult pool_adopt(struct shared *shared, CUmemoryPool *made);

/* Stop allocating from it; it ends with its last pointer. */
void pool_destroy(CUmemoryPool pool);

/* The pool that cuMemAllocAsync uses on a device. NULL: no host memory. */
CUmemoryPool pool_current(CUdevice device);

/* Forget that the pool was anywhere current. */
void pool_forget_current(CUmemoryPool pool);

CUresult pool_allocate(CUmemoryPool pool, size_t size, CUdeviceptr *address);

/* Free a segment, or an imported pointer. */
CUresult pool_free(const struct space_block *chunk, uintptr_t address);
CUresult pool_free_import(struct space_block *block, uintptr_t address);

/* The segment around an address in a block of kind SPACE_CHUNK. */
struct arena_segment *pool_find(const struct space_block *chunk, uintptr_t address, bool around);

static inline CUmemoryPool pool_of(const struct space_block *chunk) {
  return ((struct arena_chunk *)chunk->owner)->arena->owner;
}

void pool_set_threshold(CUmemoryPool pool, uint64_t bytes);

/* Give back idle memory beyond `keep` bytes. */
void pool_trim(CUmemoryPool pool, uint64_t keep);

/* A stream, an event, a context or all is done: pools shrink to their thresholds. */
void pools_synchronized(void);

/* Give back all idle memory on a GPU; false: there was none. */
bool pools_reclaim(uint32_t gpu);

#endif
