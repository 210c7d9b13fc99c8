/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: each costs hundreds of MiB, which the share pays.
 */
#include "books.h"
#include "contexts.h"
#include "hooks.h"
#include "state.h"

/* The share that is to pay for a context on `dev`. */
static CUresult payer(CUdevice dev, struct aq_share **share) {
  if (!aq_is_ready())
    return CUDA_ERROR_NOT_INITIALIZED;
  if (!aq_device_exists(dev))
    return CUDA_ERROR_INVALID_DEVICE;
  *share = aq_device_share(dev);
  return *share ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice dev) {
  struct aq_share *share;
  if (!AQ_REAL(cuDevicePrimaryCtxRetain))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuDevicePrimaryCtxRetain)(context, dev);
  CUresult result = payer(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  if (!aq_primary_enter(dev, share))
    return CUDA_ERROR_OUT_OF_MEMORY;
  aq_depth++;
  result = AQ_REAL(cuDevicePrimaryCtxRetain)(context, dev);
  aq_depth--;
  aq_primary_leave(dev, share, result == CUDA_SUCCESS ? *context : NULL);
  return result;
}

/* After a release or a reset: the last one ends the context and what it held. */
static CUresult settle_primary(CUresult result, CUdevice dev) {
  struct aq_share *share = aq_depth == 0 ? aq_device_share(dev) : NULL;
  if (result != CUDA_SUCCESS || !share || !AQ_REAL(cuDevicePrimaryCtxGetState))
    return result;
  for (bool ended = false; !ended;) {
    unsigned int flags;
    int active = 1;
    uint64_t epoch = aq_primary_epoch(dev);
    if (AQ_REAL(cuDevicePrimaryCtxGetState)(dev, &flags, &active) != CUDA_SUCCESS || active)
      break;
    ended = aq_primary_end(dev, share, epoch);
  }
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  if (!AQ_REAL(cuDevicePrimaryCtxRelease))
    return CUDA_ERROR_NOT_SUPPORTED;
  return settle_primary(AQ_REAL(cuDevicePrimaryCtxRelease)(dev), dev);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  if (!AQ_REAL(cuDevicePrimaryCtxRelease_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  return settle_primary(AQ_REAL(cuDevicePrimaryCtxRelease_v2)(dev), dev);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  if (!AQ_REAL(cuDevicePrimaryCtxReset))
    return CUDA_ERROR_NOT_SUPPORTED;
  return settle_primary(AQ_REAL(cuDevicePrimaryCtxReset)(dev), dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  if (!AQ_REAL(cuDevicePrimaryCtxReset_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  return settle_primary(AQ_REAL(cuDevicePrimaryCtxReset_v2)(dev), dev);
}

static CUresult begin(CUdevice dev, struct aq_share **share) {
  CUresult result = payer(dev, share);
  if (result != CUDA_SUCCESS)
    return result;
  return aq_context_reserve(*share) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A context that we could not remember is not kept. */
static CUresult settle(CUresult result, struct aq_share *share, CUcontext *context, CUcontext made) {
  if (result == CUDA_SUCCESS && aq_contexts_add(made, share)) {
    *context = made;
    return CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS) {
    if (AQ_REAL(cuCtxDestroy_v2))
      AQ_REAL(cuCtxDestroy_v2)(made);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  aq_context_cancel(share);
  return result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice dev) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuCtxCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuCtxCreate)(context, flags, dev);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuCtxCreate)(&made, flags, dev);
  aq_depth--;
  return settle(result, share, context, made);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuCtxCreate_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuCtxCreate_v2)(context, flags, dev);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuCtxCreate_v2)(&made, flags, dev);
  aq_depth--;
  return settle(result, share, context, made);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                        CUdevice dev) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuCtxCreate_v3))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuCtxCreate_v3)(context, affinity, count, flags, dev);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuCtxCreate_v3)(&made, affinity, count, flags, dev);
  aq_depth--;
  return settle(result, share, context, made);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice dev) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuCtxCreate_v4))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuCtxCreate_v4)(context, params, flags, dev);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuCtxCreate_v4)(&made, params, flags, dev);
  aq_depth--;
  return settle(result, share, context, made);
}

struct leaving {
  struct aq_share *share; /* NULL: not ours to count */
  CUcontext name;
};

/* Taken out before the driver is asked, as its handle may be used again at once. */
static struct leaving leave(CUcontext context) {
  struct leaving leaving = {NULL, NULL};
  if (aq_depth == 0 && aq_is_ready())
    leaving.share = aq_contexts_remove(context);
  if (leaving.share)
    leaving.name = aq_context_rename(leaving.share, context);
  return leaving;
}

static CUresult destroyed(CUresult result, CUcontext context, struct leaving leaving) {
  if (!leaving.share)
    return result;
  if (result == CUDA_SUCCESS) {
    aq_context_drop(leaving.share, leaving.name);
    aq_context_cancel(leaving.share);
  } else {
    aq_context_put_back(leaving.share, leaving.name, context);
    aq_contexts_add(context, leaving.share);
  }
  return result;
}

CUresult cuCtxDestroy(CUcontext context) {
  if (!AQ_REAL(cuCtxDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  struct leaving leaving = leave(context);
  return destroyed(AQ_REAL(cuCtxDestroy)(context), context, leaving);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  if (!AQ_REAL(cuCtxDestroy_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  struct leaving leaving = leave(context);
  return destroyed(AQ_REAL(cuCtxDestroy_v2)(context), context, leaving);
}

/* Ends the context: cuCtxAttach, which would keep it, is refused. */
CUresult cuCtxDetach(CUcontext context) {
  if (!AQ_REAL(cuCtxDetach))
    return CUDA_ERROR_NOT_SUPPORTED;
  struct leaving leaving = leave(context);
  return destroyed(AQ_REAL(cuCtxDetach)(context), context, leaving);
}

/* Stacks, heaps and FIFOs are device memory. They may shrink; to grow them is refused until
 * they are accounted. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  struct aq_here here;
  size_t now = 0;
  if (!AQ_REAL(cuCtxSetLimit) || !AQ_REAL(cuCtxGetLimit))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY ||
      limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    return AQ_REAL(cuCtxSetLimit)(limit, value);
  CUresult result = aq_here(&here);
  if (result != CUDA_SUCCESS)
    return result;
  if (aq_share_is_limited(here.share)) {
    result = AQ_REAL(cuCtxGetLimit)(&now, limit);
    if (result != CUDA_SUCCESS)
      return result;
    if (value > now)
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
  return AQ_REAL(cuCtxSetLimit)(limit, value);
}
