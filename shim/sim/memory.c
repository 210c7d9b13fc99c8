/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory: take and give back.
 */
#include "memory.h"

#include "array.h"
#include "capture.h"
#include "graph_memory.h"
#include "import.h"
#include "late.h"
#include "managed.h"
#include "mig.h"
#include "mps.h"
#include "pool.h"
#include "vmm.h"

#define GRAIN 512ULL /* small allocations are packed at this step */
#define PITCH 512ULL

CUresult memory_enter(CUcontext *context) {
  CUresult result = driver_enter_context(context);
  if (result == CUDA_SUCCESS && capture_forbids_unsafe()) {
    result = driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return result;
}

CUresult memory_enter_stream(CUstream handle, bool per_thread, CUcontext *context, bool *captured) {
  CUstream stream;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = stream_find(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  if (stream_blocked_by_capture(stream)) {
    capture_spoil_implicit(stream);
    return driver_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  *captured = capture_of(stream) != NULL;
  *context = stream->context;
  return CUDA_SUCCESS;
}

struct books_delta memory_allocation(size_t size) {
  if (size >= SIM_PAGE) {
    return (struct books_delta){.pages = (int64_t)((size + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE),
                                .requested = (int64_t)size};
  }
  return (struct books_delta){.packed = (int64_t)((size + GRAIN - 1) / GRAIN * GRAIN),
                              .requested = (int64_t)size};
}

struct books_delta memory_refund(size_t size) {
  struct books_delta delta = memory_allocation(size);
  return (struct books_delta){.pages = -delta.pages, .packed = -delta.packed, .requested = -delta.requested};
}

/* Memory that this process keeps without using it. */
static bool reclaim(uint32_t gpu) {
  bool from_pools = pools_reclaim(gpu);
  bool from_frees = late_settle();
  return graph_memory_reclaim(gpu) || from_pools || from_frees;
}

/* `aliquot-sim inject oom`: so many more requests are refused. */
static bool fault_refuses(uint32_t gpu) {
  _Atomic uint64_t *left = &driver.books.node.state->gpu[gpu].faults.oom;
  uint64_t seen = atomic_load_explicit(left, memory_order_relaxed);
  while (seen > 0 && !atomic_compare_exchange_weak(left, &seen, seen - 1)) {
  }
  return seen > 0;
}

/* Whether this process has nothing of the whole GPU yet: it may have become one of MIG devices meanwhile. */
static bool is_first(uint32_t gpu) {
  const struct books_gpu *mine = &driver.books.gpu[gpu];
  return driver.books.node.part == 0 && mine->held[SIM_PHYSICAL] == 0 && mine->shared == 0;
}

bool memory_charge(uint32_t gpu, struct books_delta delta) {
  uint64_t wanted = driver.books.gpu[gpu].held[SIM_REQUESTED] + (uint64_t)delta.requested;
  bool within = delta.requested <= 0 || mps_allows((unsigned)driver_ordinal(gpu), wanted);
  if (!within || fault_refuses(gpu)) {
    return false;
  }
  bool first = is_first(gpu);
  bool charged =
      books_change(&driver.books, gpu, delta) || (reclaim(gpu) && books_change(&driver.books, gpu, delta));
  if (charged && first && !mig_enter_whole(driver.books.node.state, gpu)) {
    struct books_delta back = {-delta.pages, -delta.packed, -delta.requested};
    return books_change(&driver.books, gpu, back), false;
  }
  return charged;
}

bool memory_charge_shared(struct shared *shared, uint64_t bytes) {
  uint32_t gpu = shared_about(&driver.books, shared)->gpu;
  if (fault_refuses(gpu)) {
    return false;
  }
  bool first = is_first(gpu);
  uint64_t before = shared->held;
  bool set =
      shared_set(&driver.books, shared, bytes) || (reclaim(gpu) && shared_set(&driver.books, shared, bytes));
  if (set && first && !mig_enter_whole(driver.books.node.state, gpu)) {
    return shared_set(&driver.books, shared, before), false;
  }
  return set;
}

static CUresult allocate(CUcontext context, size_t size, bool low, struct space_block **taken) {
  if (size > driver_capacity(context->gpu)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct space_block *block = space_take(size, low);
  if (!block) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!memory_charge(context->gpu, memory_allocation(size))) {
    space_give(block);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block->owner = context;
  *taken = block;
  return CUDA_SUCCESS;
}

void memory_release(struct space_block *block) {
  if (block->leaving) {
    late_forget(block);
  }
  if (block->kind == SPACE_MANAGED) {
    managed_end(block->owner);
  } else {
    CUcontext context = block->owner;
    books_change(&driver.books, context->gpu, memory_refund(block->size));
  }
  space_give(block);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
  CUcontext context;
  CUresult result = memory_enter(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!dptr || bytesize == 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct space_block *block;
  result = allocate(context, bytesize, false, &block);
  if (result == CUDA_SUCCESS) {
    *dptr = block->address;
  }
  return driver_leave(result);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
  CUcontext context;
  CUresult result = memory_enter(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!dptr || bytesize == 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct space_block *block;
  result = allocate(context, bytesize, true, &block);
  if (result == CUDA_SUCCESS) {
    *dptr = (CUdeviceptr_v1)block->address;
  }
  return driver_leave(result);
}

static CUresult allocate_pitch(CUcontext context, size_t width, size_t height, unsigned element, bool low,
                               size_t *pitch, struct space_block **block) {
  bool valid_element = element == 4 || element == 8 || element == 16;
  size_t rounded = (width + PITCH - 1) / PITCH * PITCH;
  size_t size;
  if (!valid_element || width == 0 || height == 0 || rounded < width ||
      __builtin_mul_overflow(rounded, height, &size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = allocate(context, size, low, block);
  if (result == CUDA_SUCCESS) {
    *pitch = rounded;
  }
  return result;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  CUcontext context;
  CUresult result = memory_enter(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!dptr || !pPitch) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct space_block *block;
  size_t pitch;
  result = allocate_pitch(context, WidthInBytes, Height, ElementSizeBytes, false, &pitch, &block);
  if (result == CUDA_SUCCESS) {
    *dptr = block->address;
    *pPitch = pitch;
  }
  return driver_leave(result);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes,
                         unsigned int Height, unsigned int ElementSizeBytes) {
  CUcontext context;
  CUresult result = memory_enter(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!dptr || !pPitch) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct space_block *block;
  size_t pitch;
  result = allocate_pitch(context, WidthInBytes, Height, ElementSizeBytes, true, &pitch, &block);
  if (result == CUDA_SUCCESS) {
    *dptr = (CUdeviceptr_v1)block->address;
    *pPitch = (unsigned)pitch;
  }
  return driver_leave(result);
}

/* Nothing of it is on a GPU yet. */
static CUresult allocate_managed(CUcontext context, size_t size, CUdeviceptr *address) {
  struct space_block *block = space_take(size, false);
  struct managed *managed = block ? managed_new(context, block->address, size) : NULL;
  if (!managed) {
    if (block) {
      space_give(block);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  block->kind = SPACE_MANAGED;
  block->owner = managed;
  space_back(block, true);
  *address = block->address;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
  CUcontext context;
  CUresult result = memory_enter(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!dptr || bytesize == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(allocate_managed(context, bytesize, dptr));
}

static CUresult free_import(struct space_block *block, uintptr_t address) {
  const struct import *import = block->owner;
  if (import->kind == IMPORT_EXTERNAL && block->address == address) {
    import_give(block);
    return CUDA_SUCCESS;
  }
  return pool_free_import(block, address);
}

CUresult memory_free(uintptr_t address) {
  struct space_block *block = space_find(address);
  if (!block) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (block->kind) {
  case SPACE_CHUNK:
    return pool_free(block, address);
  case SPACE_IMPORT:
    return free_import(block, address);
  case SPACE_GRAPH:
    return graph_memory_free(address);
  case SPACE_LINEAR:
  case SPACE_MANAGED:
    if (block->address == address && !block->leaving) {
      memory_release(block);
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult memory_free_later(uintptr_t address, CUstream stream) {
  struct space_block *block = space_find(address);
  bool waits = block && (block->kind == SPACE_LINEAR || block->kind == SPACE_MANAGED) &&
               block->address == address && !block->leaving;
  return waits ? late_free(block, stream) : memory_free(address);
}

static CUresult give_back(uintptr_t address) {
  CUcontext context;
  CUresult result = memory_enter(&context);
  return result == CUDA_SUCCESS ? driver_leave(memory_free(address)) : result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  return give_back(dptr);
}
CUresult cuMemFree(CUdeviceptr_v1 dptr) {
  return give_back(dptr);
}

static void release_if_owned(struct space_block *block, void *context) {
  bool linear = block->kind == SPACE_LINEAR && block->owner == context;
  if (linear || (block->kind == SPACE_MANAGED && ((struct managed *)block->owner)->context == context)) {
    memory_release(block);
  } else if (block->kind == SPACE_VARIABLES && block->owner == context) {
    space_give(block); /* counted as code */
  } else if (block->kind == SPACE_IMPORT && ((struct import *)block->owner)->context == context) {
    import_give(block);
  }
}

void memory_forget(CUcontext context) {
  ipc_forget(context);
  externals_forget(context);
  arrays_forget(context);
  mipmaps_forget(context);
  space_each(release_if_owned, context);
}
