/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered allocation, and the life of pools. An allocation or a free of
 * a pool's memory takes effect in the books when it is called, whatever the
 * stream still does.
 */
#include <string.h>

#include "graph.h"
#include "pool.h"
#include "stream.h"

/* In a capture, the pool only says what the node's memory is to be like. */
static CUresult allocate(CUdeviceptr *dptr, size_t size, CUmemoryPool pool, CUstream stream, bool per_thread,
                         bool captured) {
  if (!dptr || size == 0 || !pool_is(pool) || pool->imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return captured ? capture_alloc(stream, per_thread, &pool->props, size, dptr)
                  : pool_allocate(pool, size, dptr);
}

/* The device is the stream's, not that of the current context. */
static CUresult from_current(CUdeviceptr *dptr, size_t size, CUstream stream, bool per_thread) {
  CUcontext context;
  bool captured;
  CUresult result = memory_enter_stream(stream, per_thread, &context, &captured);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUmemoryPool pool = pool_current((CUdevice)context->device);
  return driver_leave(pool ? allocate(dptr, size, pool, stream, per_thread, captured)
                           : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult from_pool(CUdeviceptr *dptr, size_t size, CUmemoryPool pool, CUstream stream,
                          bool per_thread) {
  CUcontext context;
  bool captured;
  CUresult result = memory_enter_stream(stream, per_thread, &context, &captured);
  return result == CUDA_SUCCESS ? driver_leave(allocate(dptr, size, pool, stream, per_thread, captured))
                                : result;
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
  return from_current(dptr, bytesize, hStream, false);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
  return from_current(dptr, bytesize, hStream, true);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
  return from_pool(dptr, bytesize, pool, hStream, false);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream) {
  return from_pool(dptr, bytesize, pool, hStream, true);
}

static CUresult give(CUdeviceptr dptr, CUstream stream, bool per_thread) {
  CUcontext context;
  bool captured;
  CUresult result = memory_enter_stream(stream, per_thread, &context, &captured);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (captured) {
    return driver_leave(capture_free(stream, per_thread, dptr));
  }
  CUstream owner;
  result = stream_find(stream, per_thread, &owner);
  return driver_leave(result == CUDA_SUCCESS ? memory_free_later(dptr, owner) : result);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
  return give(dptr, hStream, false);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return give(dptr, hStream, true);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pool || !poolProps) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(pool_make(poolProps, pool));
}

/* Lock the driver; fail unless this is a pool. */
static CUresult enter_pool(CUmemoryPool pool) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return pool_is(pool) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  CUresult result = enter_pool(pool);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (pool->is_default) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  pool_destroy(pool);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  CUresult result = enter_pool(pool);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  pool_trim(pool, minBytesToKeep);
  return driver_leave(CUDA_SUCCESS);
}

static bool is_own_device(CUmemoryPool pool, const CUmemLocation *location) {
  return pool->props.location.type == CU_MEM_LOCATION_TYPE_DEVICE && pool->props.location.id == location->id;
}

static CUresult check_access(CUmemoryPool pool, const CUmemAccessDesc *wanted) {
  bool none = wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
  bool all = wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !driver_is_device(wanted->location.id) ||
      (!none && !all)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_own_device(pool, &wanted->location)) {
    return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* never taken from the pool's own device */
  }
  return none || pool->place == POOL_HOST ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED; /* there are no peers */
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count) {
  CUresult result = enter_pool(pool);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!map && count > 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
    result = check_access(pool, &map[i]);
  }
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
    uint32_t bit = 1U << map[i].location.id;
    pool->access = map[i].flags ? pool->access | bit : pool->access & ~bit;
  }
  return driver_leave(result);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location) {
  CUresult result = enter_pool(memPool);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
      !driver_is_device(location->id)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  bool granted = is_own_device(memPool, location) || memPool->place == POOL_MANAGED ||
                 (memPool->access >> location->id & 1);
  *flags = granted ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return driver_leave(CUDA_SUCCESS);
}
