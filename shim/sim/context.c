/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: each costs memory; made ones, and which is current in a thread.
 */
#include <stdlib.h>

#include "context_life.h"
#include "context_memory.h"
#include "memory.h"
#include "mig.h"
#include "mps.h"
#include "work_list.h"

#define DEPTH 64 /* of a thread's stack of current contexts */

/* A stack entry may outlive its context: the serial tells. */
static _Thread_local struct {
  struct {
    CUcontext context;
    uint64_t serial;
  } entry[DEPTH];
  unsigned depth;
} current;

static bool is_known(CUcontext wanted) {
  for (CUcontext context = driver.contexts; context; context = context->next) {
    if (context == wanted) {
      return true;
    }
  }
  return false;
}

bool context_is_live(CUcontext context) {
  return context && is_known(context) && context->serial != 0;
}

static CUresult context_top(CUcontext *context) {
  if (current.depth == 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  CUcontext top = current.entry[current.depth - 1].context;
  if (top->serial != current.entry[current.depth - 1].serial) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  *context = top;
  return CUDA_SUCCESS;
}

bool context_is_lost(CUcontext context) {
  const struct sim_gpu *gpu = &driver.books.node.state->gpu[context->gpu];
  return atomic_load_explicit(&gpu->faults.lost, memory_order_relaxed);
}

CUresult context_current(CUcontext *context) {
  CUcontext top = NULL;
  CUresult result = context_top(&top);
  if (result == CUDA_SUCCESS && context_is_lost(top)) {
    return CUDA_ERROR_UNKNOWN; /* what programs get on a GPU that fell off the bus */
  }
  result = result == CUDA_SUCCESS ? (CUresult)mps_fault() : result;
  if (result == CUDA_SUCCESS) {
    *context = top;
  }
  return result;
}

CUresult driver_enter_context(CUcontext *context) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = context_current(context);
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

static bool push(CUcontext context) {
  if (current.depth == DEPTH) {
    return false;
  }
  current.entry[current.depth].context = context;
  current.entry[current.depth].serial = context->serial;
  current.depth++;
  return true;
}

static uint32_t live_on(uint32_t gpu) {
  uint32_t count = 0;
  for (CUcontext context = driver.contexts; context; context = context->next) {
    count += context->serial != 0 && context->gpu == gpu;
  }
  return count;
}

static CUcontext free_object(void) {
  for (CUcontext context = driver.contexts; context; context = context->next) {
    if (context->serial == 0) {
      return context;
    }
  }
  CUcontext context = calloc(1, sizeof *context);
  if (context) {
    context->next = driver.contexts;
    driver.contexts = context;
  }
  return context;
}

/* Values of nvmlComputeMode_t. */
enum { ANY_PROCESS, ANY_THREAD, NO_PROCESS, ONE_PROCESS };

static bool mode_allows(uint32_t gpu) {
  struct sim_state *state = driver.books.node.state;
  uint32_t mode = atomic_load(&state->gpu[gpu].compute_mode);
  uint32_t last = atomic_load(&state->slots_used);
  if (mode != ONE_PROCESS) {
    return mode != NO_PROCESS;
  }
  slots_sweep(&driver.books.node, gpu, SIM_ANY, driver.books.slot);
  for (uint32_t slot = 1; slot <= last; slot++) {
    bool alive = atomic_load(&state->slot[slot].life) & 1;
    if (slot != driver.books.slot && alive && atomic_load(&state->slot[slot].holding[gpu].contexts) > 0 &&
        mps_excludes(slot)) {
      return false;
    }
  }
  return true;
}

CUresult context_create(CUdevice device, unsigned flags, bool primary, CUcontext *created) {
  uint32_t gpu = driver.gpu[device];
  if (atomic_load(&driver_gpu(device)->faults.lost)) {
    return CUDA_ERROR_UNKNOWN;
  }
  CUresult fault = (CUresult)mps_fault();
  if (fault != CUDA_SUCCESS) {
    return fault;
  }
  bool partitioned = driver.books.node.part == 0 && mig_is_on(mig_word(driver.books.node.state, gpu));
  if (partitioned || !mode_allows(gpu)) { /* it may have been partitioned after cuInit */
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  struct books_delta cost = {.pages = (int64_t)driver_gpu(device)->context_bytes};
  CUcontext context = free_object();
  if (!context || !memory_charge(gpu, cost)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->serial = ++driver.serial;
  context->device = (unsigned)device;
  context->gpu = gpu;
  context->primary = primary;
  context->flags = flags;
  context_limits_begin(context);
  context->legacy = NULL;
  context->blocking_end = 0;
  books_set_contexts(&driver.books, gpu, live_on(gpu));
  *created = context;
  return CUDA_SUCCESS;
}

void context_destroy(CUcontext context) {
  work_forget_context(context);
  memory_forget(context);
  uint64_t cost = driver_gpu((CUdevice)context->device)->context_bytes + context_extra(context);
  books_change(&driver.books, context->gpu, (struct books_delta){.pages = -(int64_t)cost});
  context->serial = 0;
  books_set_contexts(&driver.books, context->gpu, live_on(context->gpu));
}

CUresult context_enter_device(CUdevice device) {
  CUresult result = driver_enter();
  if (result == CUDA_SUCCESS && !driver_is_device(device)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  return result;
}

bool context_flags_are_valid(unsigned flags) {
  return (flags & ~(unsigned)CU_CTX_FLAGS_MASK) == 0 && (flags & CU_CTX_SCHED_MASK) != 3 &&
         (flags & CU_CTX_SCHED_MASK) <= CU_CTX_SCHED_BLOCKING_SYNC;
}

/* --- made contexts --- */

static CUresult make(CUcontext *pctx, unsigned flags, CUdevice dev) {
  CUresult result = context_enter_device(dev);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pctx || !context_flags_are_valid(flags)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUcontext context;
  if (current.depth == DEPTH) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  result = context_create(dev, flags, false, &context);
  if (result == CUDA_SUCCESS) {
    push(context);
    *pctx = context;
  }
  return driver_leave(result);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  return make(pctx, flags, dev);
}
CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
  return make(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
  bool affinity = paramsArray && numParams > 0;
  return affinity ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : make(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags,
                        CUdevice dev) {
  if (ctxCreateParams && ctxCreateParams->numExecAffinityParams > 0) {
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  }
  bool graphics = ctxCreateParams && ctxCreateParams->cigParams;
  return graphics ? CUDA_ERROR_NOT_SUPPORTED : make(pctx, flags, dev);
}

static CUresult unmake(CUcontext ctx) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!ctx) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!context_is_live(ctx) || ctx->primary) {
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  }
  CUcontext top = NULL;
  if (context_top(&top) == CUDA_SUCCESS && top == ctx) {
    current.depth--;
  }
  context_destroy(ctx);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxDestroy(CUcontext ctx) {
  return unmake(ctx);
}
CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return unmake(ctx);
}

/* --- the thread's current context --- */

CUresult cuCtxGetCurrent(CUcontext *pctx) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pctx) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUcontext top = NULL;
  result = current.depth == 0 ? CUDA_SUCCESS : context_top(&top);
  if (result == CUDA_SUCCESS) {
    *pctx = top;
  }
  return driver_leave(result);
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (ctx && !context_is_live(ctx)) {
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  }
  if (current.depth > 0) {
    current.depth--;
  }
  if (ctx) {
    push(ctx);
  }
  return driver_leave(CUDA_SUCCESS);
}

static CUresult push_current(CUcontext ctx) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!ctx) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!context_is_live(ctx)) {
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  }
  return driver_leave(push(ctx) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

CUresult cuCtxPushCurrent(CUcontext ctx) {
  return push_current(ctx);
}
CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  return push_current(ctx);
}

static CUresult pop_current(CUcontext *pctx) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUcontext top;
  result = context_top(&top);
  if (result == CUDA_SUCCESS) {
    current.depth--;
    if (pctx) {
      *pctx = top;
    }
  }
  return driver_leave(result);
}

CUresult cuCtxPopCurrent(CUcontext *pctx) {
  return pop_current(pctx);
}
CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
  return pop_current(pctx);
}
