/* SPDX-License-Identifier: Apache-2.0
 *
 * Context limits, and what they cost.
 */
#include "context_memory.h"
#include "memory.h"
#include "profiles.h"

#define KIB 1024ULL
#define MIB (1024 * KIB)

static const size_t defaults[CU_LIMIT_PER_BLOCK_MEMORY_SIZE + 1] = {
    [CU_LIMIT_STACK_SIZE] = 1 * KIB,
    [CU_LIMIT_PRINTF_FIFO_SIZE] = 1 * MIB,
    [CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB,
    [CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
    [CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
    [CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

_Static_assert(sizeof defaults == sizeof((struct CUctx_st *)0)->limits, "one value per limit");

#define MOST_STACK      (512 * KIB)
#define DEEPEST_SYNC    24
#define PER_LEVEL       (150 * MIB)
#define PER_LAUNCH      KIB
#define MOST_L2_FETCH   128
#define SYNC_ENDS_WITH  9 /* compute capability that no longer has the limit */
#define LARGEST_LIMIT   (1ULL << 42)
#define THREADS_A_BLOCK 64 /* the least: as CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR has it */

void context_limits_begin(CUcontext context) {
  for (size_t limit = 0; limit < sizeof defaults / sizeof *defaults; limit++) {
    context->limits[limit] = defaults[limit];
  }
  context->limit_bytes = 0;
  context->code_bytes = 0;
  context->attached = 0;
}

uint64_t context_extra(CUcontext context) {
  return context->limit_bytes + memory_round(context->code_bytes, SIM_PAGE);
}

static const struct sim_profile *profile_of(CUcontext context) {
  return driver_profile(context->gpu);
}

static uint64_t cost_of(CUcontext context, CUlimit limit, uint64_t value) {
  const struct sim_profile *profile = profile_of(context);
  uint64_t threads = (uint64_t)profile->multiprocessors * profile->threads_per_multiprocessor;
  switch (limit) {
  case CU_LIMIT_STACK_SIZE:
    return value * threads;
  case CU_LIMIT_PRINTF_FIFO_SIZE:
  case CU_LIMIT_MALLOC_HEAP_SIZE:
    return value;
  case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    return value * PER_LEVEL;
  case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    return value * PER_LAUNCH;
  case CU_LIMIT_PER_BLOCK_MEMORY_SIZE:
    return value * (threads / THREADS_A_BLOCK);
  default:
    return 0;
  }
}

/* All limits together; what is below its default gives nothing back. */
static uint64_t cost_of_all(CUcontext context, const size_t *limits) {
  uint64_t cost = 0;
  for (size_t limit = 0; limit < sizeof defaults / sizeof *defaults; limit++) {
    uint64_t now = cost_of(context, (CUlimit)limit, limits[limit]);
    uint64_t before = cost_of(context, (CUlimit)limit, defaults[limit]);
    cost += now > before ? memory_round(now - before, SIM_PAGE) : 0;
  }
  return cost;
}

static CUresult change(CUcontext context, CUlimit limit, size_t value) {
  size_t before = context->limits[limit];
  context->limits[limit] = value;
  uint64_t cost = cost_of_all(context, context->limits);
  struct books_delta delta = {.pages = (int64_t)(cost - context->limit_bytes)};
  bool done = cost < LARGEST_LIMIT && memory_charge(context->gpu, delta);
  if (!done) {
    context->limits[limit] = before;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->limit_bytes = cost;
  return CUDA_SUCCESS;
}

static CUresult check(CUcontext context, CUlimit limit, size_t *value) {
  const struct sim_profile *profile = profile_of(context);
  switch (limit) {
  case CU_LIMIT_STACK_SIZE:
    return *value <= MOST_STACK ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    if (profile->major >= SYNC_ENDS_WITH) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    return *value <= DEEPEST_SYNC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
    return *value <= MOST_L2_FETCH ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: /* a hint, clamped (cuda.h) */
    *value = *value < profile->l2_bytes ? *value : profile->l2_bytes;
    return CUDA_SUCCESS;
  case CU_LIMIT_PRINTF_FIFO_SIZE:
  case CU_LIMIT_MALLOC_HEAP_SIZE:
  case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
  case CU_LIMIT_PER_BLOCK_MEMORY_SIZE:
    return *value < LARGEST_LIMIT ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  default:
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = check(context, limit, &value);
  return driver_leave(result == CUDA_SUCCESS ? change(context, limit, value) : result);
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit) {
  CUcontext context;
  size_t unchanged = 0;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = pvalue ? check(context, limit, &unchanged) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    *pvalue = context->limits[limit];
  }
  return driver_leave(result);
}

CUresult context_stack(CUcontext context, size_t bytes) {
  return bytes <= context->limits[CU_LIMIT_STACK_SIZE] ? CUDA_SUCCESS
                                                       : change(context, CU_LIMIT_STACK_SIZE, bytes);
}

/* --- code --- */

static CUresult change_code(CUcontext context, uint64_t bytes) {
  int64_t before = (int64_t)memory_round(context->code_bytes, SIM_PAGE);
  int64_t after = (int64_t)memory_round(bytes, SIM_PAGE);
  if (after != before && !memory_charge(context->gpu, (struct books_delta){.pages = after - before})) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  context->code_bytes = bytes;
  return CUDA_SUCCESS;
}

CUresult context_code(CUcontext context, uint64_t bytes) {
  return change_code(context, context->code_bytes + bytes);
}

void context_code_end(CUcontext context, uint64_t bytes) {
  change_code(context, context->code_bytes - bytes);
}
