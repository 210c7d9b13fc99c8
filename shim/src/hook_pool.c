/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream-ordered memory and pools. The device is the stream's, not the current context's.
 */
#include "books.h"
#include "capture.h"
#include "graphs.h"
#include "hooks.h"
#include "leaving.h"
#include "pools.h"
#include "probes.h"
#include "state.h"
#include "streams.h"

/* How one ABI allocates. Handed on as it is: with its address known elsewhere it would have to stand in
 * memory. */
struct way {
  __typeof__(cuMemAllocAsync) *current;      /* from the device's pool */
  __typeof__(cuMemAllocFromPoolAsync) *from; /* from `pool` */
  CUmemoryPool pool;
  CUstream stream;
  bool per_thread;
};

static inline CUresult ask_driver(struct way way, CUdeviceptr *dptr, size_t bytes) {
  return way.from ? way.from(dptr, bytes, way.pool, way.stream) : way.current(dptr, bytes, way.stream);
}

/* -1: the driver has an error of its own. */
AQ_RARE static CUdevice stream_device(CUstream stream) {
  CUdevice device = -1;
  struct aq_own_calls calls = aq_own_calls_begin();
  CUresult result = aq_stream_device(stream, &device);
  aq_own_calls_end(&calls);
  return result == CUDA_SUCCESS ? device : -1;
}

/* The pool that pays. NULL without an error: nobody does, or the driver has an error of its own. */
static inline CUresult find_pool(struct way way, struct aq_pool **pool) {
  CUdevice device = aq_sole_device();
  if (way.from)
    *pool = aq_pool_find(way.pool);
  if (*pool)
    return CUDA_SUCCESS;
  if (AQ_SELDOM(device < 0)) {
    device = stream_device(way.stream);
    if (device < 0)
      return CUDA_SUCCESS;
  }
  if (AQ_SELDOM(!aq_device_share(device)))
    return CUDA_ERROR_NOT_PERMITTED;
  /* A pool that we have not seen come: the stream's device pays. */
  *pool = way.from ? aq_pool_learn(way.pool, aq_device_share(device)) : aq_pool_current(device);
  return CUDA_SUCCESS;
}

/* Back with what the pool must not keep. */
AQ_RARE static CUresult undo(struct way way, struct aq_pool_ask ask, CUdeviceptr pointer) {
  __typeof__(cuMemFreeAsync) *release =
      way.per_thread ? AQ_REAL(cuMemFreeAsync_ptsz) : AQ_REAL(cuMemFreeAsync);
  struct aq_own_calls calls = aq_own_calls_begin();
  if (release)
    release(pointer, way.stream);
  aq_own_calls_end(&calls);
  aq_pool_undone(&ask);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

AQ_RARE static void cancel(struct aq_pool_ask ask) {
  aq_pool_cancel(&ask);
}

static inline CUresult allocate(struct way way, struct aq_pool *pool, unsigned choices, CUdeviceptr *dptr,
                                size_t bytes) {
  struct aq_pool_ask ask;
  CUdeviceptr pointer = 0;
  if (!aq_pool_enter(pool, bytes, &ask))
    return CUDA_ERROR_OUT_OF_MEMORY;
  aq_depth++;
  CUresult result = ask_driver(way, &pointer, bytes);
  aq_depth--;
  if (AQ_SELDOM(result != CUDA_SUCCESS)) {
    cancel(ask);
    return result;
  }
  bool kept = aq_pool_leave(&ask, pointer);
  if (AQ_SELDOM(choices != aq_pool_choices()))
    aq_pools_refresh();
  if (AQ_SELDOM(!kept))
    return undo(way, ask, pointer);
  *dptr = pointer;
  return CUDA_SUCCESS;
}

/* Under capture memory appears when the graph is launched. */
static inline CUresult take(struct way way, CUdeviceptr *dptr, size_t bytes) {
  struct aq_pool *pool = NULL;
  if (AQ_SELDOM(aq_depth > 0 || !dptr || bytes == 0))
    return ask_driver(way, dptr, bytes);
  if (AQ_SELDOM(aq_is_captured(way.stream, way.per_thread))) {
    aq_graphs_allocate();
    return ask_driver(way, dptr, bytes);
  }
  if (AQ_SELDOM(!aq_is_ready()))
    return CUDA_ERROR_NOT_INITIALIZED;
  unsigned choices = aq_pool_choices();
  CUresult result = find_pool(way, &pool);
  if (AQ_SELDOM(result != CUDA_SUCCESS))
    return result;
  if (AQ_SELDOM(!pool || !aq_pool_payer(pool)))
    return ask_driver(way, dptr, bytes);
  return allocate(way, pool, choices, dptr, bytes);
}

AQ_HOT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
  struct way way = {.current = AQ_REAL(cuMemAllocAsync), .stream = stream};
  return way.current ? take(way, dptr, bytes) : CUDA_ERROR_NOT_SUPPORTED;
}

AQ_HOT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUstream stream) {
  struct way way = {.current = AQ_REAL(cuMemAllocAsync_ptsz), .stream = stream, .per_thread = true};
  return way.current ? take(way, dptr, bytes) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
  struct way way = {.from = AQ_REAL(cuMemAllocFromPoolAsync), .pool = pool, .stream = stream};
  return way.from ? take(way, dptr, bytes) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
  struct way way = {
      .from = AQ_REAL(cuMemAllocFromPoolAsync_ptsz), .pool = pool, .stream = stream, .per_thread = true};
  return way.from ? take(way, dptr, bytes) : CUDA_ERROR_NOT_SUPPORTED;
}

/* --- pools --- */

/* A pool that is not in the books is not kept. */
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
  CUmemoryPool made = NULL;
  if (!AQ_REAL(cuMemPoolCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !pool || !props || !aq_is_ready())
    return AQ_REAL(cuMemPoolCreate)(pool, props);
  CUdevice device = aq_location_device(&props->location);
  if (aq_device_exists(device) && !aq_device_share(device))
    return CUDA_ERROR_NOT_PERMITTED;
  CUresult result = AQ_REAL(cuMemPoolCreate)(&made, props);
  if (result != CUDA_SUCCESS)
    return result;
  if (!aq_pool_learn_located(made, &props->location, props->allocType)) {
    if (AQ_REAL(cuMemPoolDestroy))
      AQ_REAL(cuMemPoolDestroy)(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pool = made;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  if (!AQ_REAL(cuMemPoolDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  struct aq_pool *known = aq_depth == 0 && aq_is_ready() ? aq_pool_destroy_begin(pool) : NULL;
  CUresult result = AQ_REAL(cuMemPoolDestroy)(pool);
  if (known)
    aq_pool_destroy_end(known, pool, result == CUDA_SUCCESS);
  return result;
}

static struct aq_pool *ours(CUmemoryPool pool) {
  return aq_depth == 0 && aq_is_ready() ? aq_pool_find(pool) : NULL;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  if (!AQ_REAL(cuMemPoolTrimTo))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuMemPoolTrimTo)(pool, keep);
  struct aq_pool *known = result == CUDA_SUCCESS ? ours(pool) : NULL;
  if (known)
    aq_pool_refresh(known);
  return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  if (!AQ_REAL(cuMemPoolSetAttribute))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuMemPoolSetAttribute)(pool, attribute, value);
  struct aq_pool *known = result == CUDA_SUCCESS ? ours(pool) : NULL;
  if (known && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    aq_pool_set_threshold(known, *(const uint64_t *)value);
  return result;
}

/* The exporter pays. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  if (!AQ_REAL(cuMemPoolImportFromShareableHandle))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
  if (result == CUDA_SUCCESS && aq_depth == 0 && aq_is_ready())
    aq_pool_learn(*pool, NULL);
  return result;
}

/* A pool that the driver names is known from then on. */
static CUresult named(CUresult result, const CUmemoryPool *pool, CUdevice device) {
  if (result == CUDA_SUCCESS && aq_depth == 0 && aq_device_share(device))
    aq_pool_learn(*pool, aq_device_share(device));
  return result;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) {
  if (!AQ_REAL(cuDeviceGetDefaultMemPool))
    return CUDA_ERROR_NOT_SUPPORTED;
  return named(AQ_REAL(cuDeviceGetDefaultMemPool)(pool, dev), pool, dev);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
  if (!AQ_REAL(cuDeviceGetMemPool))
    return CUDA_ERROR_NOT_SUPPORTED;
  return named(AQ_REAL(cuDeviceGetMemPool)(pool, dev), pool, dev);
}

static CUresult named_by_place(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location,
                               CUmemAllocationType type) {
  if (result == CUDA_SUCCESS && aq_depth == 0 && aq_is_ready())
    aq_pool_learn_located(*pool, location, type);
  return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
  if (!AQ_REAL(cuMemGetDefaultMemPool))
    return CUDA_ERROR_NOT_SUPPORTED;
  return named_by_place(AQ_REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location, type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
  if (!AQ_REAL(cuMemGetMemPool))
    return CUDA_ERROR_NOT_SUPPORTED;
  return named_by_place(AQ_REAL(cuMemGetMemPool)(pool, location, type), pool, location, type);
}

/* What other threads took of the new one without knowing is found now, or by them. */
static void chosen(void) {
  aq_pool_forget_current();
  aq_pools_refresh();
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  if (!AQ_REAL(cuDeviceSetMemPool))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuDeviceSetMemPool)(dev, pool);
  chosen();
  return result;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  if (!AQ_REAL(cuMemSetMemPool))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuMemSetMemPool)(location, type, pool);
  chosen();
  return result;
}

/* --- synchronisation, at which pools shrink to their thresholds --- */

static CUresult synchronised(CUresult result) {
  if (result == CUDA_SUCCESS && aq_depth == 0) {
    aq_probes_settle();
    aq_leaving_settle();
    aq_pools_synchronised();
  }
  return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (!AQ_REAL(cuStreamSynchronize))
    return CUDA_ERROR_NOT_SUPPORTED;
  return synchronised(AQ_REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  if (!AQ_REAL(cuStreamSynchronize_ptsz))
    return CUDA_ERROR_NOT_SUPPORTED;
  return synchronised(AQ_REAL(cuStreamSynchronize_ptsz)(stream));
}

CUresult cuCtxSynchronize(void) {
  if (!AQ_REAL(cuCtxSynchronize))
    return CUDA_ERROR_NOT_SUPPORTED;
  return synchronised(AQ_REAL(cuCtxSynchronize)());
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (!AQ_REAL(cuCtxSynchronize_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  return synchronised(AQ_REAL(cuCtxSynchronize_v2)(context));
}

CUresult cuEventSynchronize(CUevent event) {
  if (!AQ_REAL(cuEventSynchronize))
    return CUDA_ERROR_NOT_SUPPORTED;
  return synchronised(AQ_REAL(cuEventSynchronize)(event));
}
