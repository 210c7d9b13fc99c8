/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the simulated libcuda share: the process's one driver
 * object, its lock, and contexts.
 *
 * Every entry point that needs the driver starts with driver_enter() and ends
 * with driver_leave(). Outputs are written on success only.
 */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

/* All ABIs by their exported names, no macros that rename; and what the header declares is exported. */
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <pthread.h>

#include "books.h"
#include "profiles.h"

struct CUctx_st {
  struct CUctx_st *next;
  uint64_t serial; /* unique per process; 0 = destroyed, the object waits for its next use */
  unsigned device; /* ordinal */
  uint32_t gpu;    /* in the state */
  bool primary;
  unsigned flags;
  size_t limits[11];    /* by CUlimit, context_memory.h */
  uint64_t limit_bytes; /* what they cost beyond the base */
  uint64_t code_bytes;
  unsigned attached;          /* attach.c */
  struct CUstream_st *legacy; /* made at its first use */
  uint64_t blocking_end;      /* place of all work of the streams that the legacy one waits for */
};

struct primary {
  CUcontext context; /* NULL = inactive */
  unsigned retains;
  unsigned flags;
};

struct driver {
  struct books books;
  unsigned devices;
  unsigned gpu[SIM_GPUS]; /* of each ordinal */
  struct primary primary[SIM_GPUS];
  struct CUctx_st *contexts;
  uint64_t serial;
};

extern struct driver driver;

/* Lock the driver. CUDA_ERROR_NOT_INITIALIZED before cuInit and in the child of a fork after it,
 * CUDA_ERROR_DEINITIALIZED while the process exits, NOT_PERMITTED in a host function; the lock is held only
 * on CUDA_SUCCESS. */
CUresult driver_enter(void);
void driver_unlock(void);

/* The same for calls that want a current context: also fails as context_current does. */
CUresult driver_enter_context(CUcontext *context);

/* A held driver lets nobody in but by driver_enter_held: all other calls wait (checkpoint.c). */
CUresult driver_enter_held(void);
void driver_hold(bool held);

/* Release the lock, wait for news (for `ns` at most; 0 = for ever), take it again. */
void driver_wait(pthread_cond_t *news, uint64_t ns);

static inline CUresult driver_leave(CUresult result) {
  driver_unlock();
  return result;
}

/* CUDA version of the node's driver; of the newest if there is no node. Without the lock. */
int driver_cuda_version(void);

/* All of these want the lock held. */
bool driver_is_device(CUdevice device);
const struct sim_gpu *driver_gpu(CUdevice device);

/* What a GPU is to this process: of a MIG device, its part of the card. */
const struct sim_profile *driver_profile(uint32_t gpu);
uint64_t driver_capacity(uint32_t gpu);

/* Ordinal of a GPU, or CU_DEVICE_INVALID if this process does not see it. */
int driver_ordinal(uint32_t gpu);

/* Whether another slot's memory is within reach: not that of another GPU instance (MIG user guide, "CUDA IPC
 * across GPU instances is not supported"). */
bool driver_shares(uint32_t slot);

/* Current context of the thread: INVALID_CONTEXT if there is none, CONTEXT_IS_DESTROYED if it is gone,
 * UNKNOWN if its GPU fell off the bus. */
CUresult context_current(CUcontext *context);
bool context_is_live(CUcontext context);

/* Its GPU fell off the bus. */
bool context_is_lost(CUcontext context);

/* Free all allocations of the context. */
void memory_forget(CUcontext context);

#endif
