/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory pools and the graph memory of a device: charged by what the driver says they have
 * reserved, and touched in the books only when that changes.
 *
 * Any thread. A pool's spin bit is held for a few instructions, never across a driver call.
 */
#ifndef ALIQUOT_POOLS_H
#define ALIQUOT_POOLS_H

#include "abi.h"
#include "hot.h"
#include "share.h"

struct aq_charge;
struct aq_pool;

/* The pool that cuMemAllocAsync on `device` takes from now. NULL: the driver has none. */
struct aq_pool *aq_pool_current(CUdevice device);
/* The program may have chosen another one. What was taken meanwhile may be that one's: whoever finds
 * another number of choices afterwards than before re-reads all pools. */
void aq_pool_forget_current(void);
unsigned aq_pool_choices(void);

/* The pool of a handle. NULL: not seen before. */
struct aq_pool *aq_pool_find(CUmemoryPool handle);
/* A pool is to be charged to `share`; NULL: to nobody (host memory, imports). NULL: no memory. */
AQ_RARE struct aq_pool *aq_pool_learn(CUmemoryPool handle, struct aq_share *share);
/* The same for one that the driver named by its location. */
struct aq_pool *aq_pool_learn_located(CUmemoryPool handle, const CUmemLocation *location,
                                      CUmemAllocationType type);
/* NULL: to nobody. */
struct aq_share *aq_pool_payer(const struct aq_pool *pool);

/* Graph memory of a device. NULL: no share. */
struct aq_pool *aq_pool_of_graphs(CUdevice device);

CUdevice aq_pool_device(const struct aq_pool *pool);
/* How often it was trimmed: then nothing of a graph is resident any more. */
uint32_t aq_pool_trims(const struct aq_pool *pool);
/* It was trimmed, by the program. */
void aq_pool_trimmed(struct aq_pool *pool);

/* An allocation of `bytes` is about to be asked for: room for what the pool may grow by. False:
 * refused and counted. */
struct aq_pool_ask {
  struct aq_pool *pool;
  uint64_t bytes;
  uint64_t generation;
  uint64_t reserved;
  uint64_t right; /* to pass the limit; 0: not needed */
  bool relies;    /* on what is charged already */
};
bool aq_pool_enter(struct aq_pool *pool, uint64_t bytes, struct aq_pool_ask *ask);
/* What was resident after so many trims is about to be launched again, which needs no more. False: it is not
 * resident any more, or may not be. */
bool aq_pool_rely(struct aq_pool *pool, uint32_t trims, struct aq_pool_ask *ask);
/* The driver refused. */
AQ_RARE void aq_pool_cancel(const struct aq_pool_ask *ask);
/* The driver gave `pointer` (0: nothing to remember). False: the pool outgrew the share, or there
 * is no memory for a record; the caller gives the pointer back and calls aq_pool_undone. */
bool aq_pool_leave(const struct aq_pool_ask *ask, CUdeviceptr pointer);
AQ_RARE void aq_pool_undone(const struct aq_pool_ask *ask);

/* A pointer of pool `number` is about to be freed in stream order. */
void aq_pool_parting(uint32_t number, CUdeviceptr pointer, uint64_t bytes);
/* A pointer of pool `number` was freed; `at_once`: and not just in stream order. */
void aq_pool_freed(uint32_t number, uint64_t bytes, bool at_once);

/* What the driver says now. */
AQ_RARE void aq_pool_refresh(struct aq_pool *pool);
/* Its memory goes back to the driver when a synchronisation finds more than this unused. */
void aq_pool_set_threshold(struct aq_pool *pool, uint64_t bytes);

/* A pool is about to be destroyed; what came of it. */
struct aq_pool *aq_pool_destroy_begin(CUmemoryPool handle);
void aq_pool_destroy_end(struct aq_pool *pool, CUmemoryPool handle, bool done);

/* After a synchronisation: re-reads the pools that hold more than they use. */
void aq_pools_synchronised(void);
/* Before a refusal: trims the share's pools and re-reads them. */
void aq_pools_reclaim(struct aq_share *share);
/* All of them, e.g. after a reset of the device, or when it is not sure which of them has grown. */
void aq_pools_refresh(void);

/* In a forked child. */
void aq_pools_reset(void);

#endif
