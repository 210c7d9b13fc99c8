/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: each costs hundreds of MiB, which the share pays.
 */
#include "books.h"
#include "contexts.h"
#include "hooks.h"
#include "leaving.h"
#include "pools.h"
#include "probes.h"
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

/* What the program gave back to its pools is there for a context as well. */
static void make_room(struct aq_share *share) {
  if (aq_is_full_with(share, aq_context_estimate(share)) && aq_reclaim)
    aq_reclaim(share);
}

static bool enter_primary(CUdevice dev, struct aq_share *share) {
  make_room(share);
  return aq_primary_enter(dev, share);
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
  if (!enter_primary(dev, share))
    return CUDA_ERROR_OUT_OF_MEMORY;
  aq_depth++;
  result = AQ_REAL(cuDevicePrimaryCtxRetain)(context, dev);
  aq_depth--;
  aq_primary_leave(dev, share, result == CUDA_SUCCESS ? *context : NULL);
  return result;
}

/* After a release or a reset: the last one ends the context and what it held. True: it did. */
static bool settle_primary(CUdevice dev, struct aq_share *share) {
  bool ended = false;
  while (!ended) {
    unsigned int flags;
    int active = 1;
    uint64_t epoch = aq_primary_epoch(dev);
    if (AQ_REAL(cuDevicePrimaryCtxGetState)(dev, &flags, &active) != CUDA_SUCCESS || active)
      break;
    ended = aq_primary_end(dev, share, epoch);
  }
  aq_pools_refresh(); /* the driver says what a reset leaves of them */
  return ended;
}

static CUresult end_primary(__typeof__(cuDevicePrimaryCtxRelease) *real, CUdevice dev) {
  if (!real)
    return CUDA_ERROR_NOT_SUPPORTED;
  struct aq_share *share = aq_depth == 0 ? aq_device_share(dev) : NULL;
  if (!share || !AQ_REAL(cuDevicePrimaryCtxGetState))
    return real(dev);
  aq_probes_drop(aq_primary_context(dev));
  struct aq_leaving *leaving = aq_leaving_take(aq_primary_context(dev));
  CUresult result = real(dev);
  aq_leaving_end(leaving, result == CUDA_SUCCESS && settle_primary(dev, share));
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  return end_primary(AQ_REAL(cuDevicePrimaryCtxRelease), dev);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return end_primary(AQ_REAL(cuDevicePrimaryCtxRelease_v2), dev);
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  return end_primary(AQ_REAL(cuDevicePrimaryCtxReset), dev);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return end_primary(AQ_REAL(cuDevicePrimaryCtxReset_v2), dev);
}

static CUresult begin(CUdevice dev, struct aq_share **share) {
  CUresult result = payer(dev, share);
  if (result != CUDA_SUCCESS)
    return result;
  make_room(*share);
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

struct parting {
  struct aq_share *share; /* NULL: not ours to count */
  CUcontext name;
  struct aq_leaving *leaving;
};

/* Taken out before the driver is asked, as its handle may be used again at once. */
static struct parting leave(CUcontext context) {
  struct parting parting = {NULL, NULL, NULL};
  if (aq_depth == 0 && aq_is_ready())
    parting.share = aq_contexts_remove(context);
  if (!parting.share)
    return parting;
  parting.name = aq_context_rename(parting.share, context);
  aq_probes_drop(context);
  parting.leaving = aq_leaving_take(context);
  return parting;
}

static CUresult destroyed(CUresult result, CUcontext context, struct parting parting) {
  if (!parting.share)
    return result;
  if (result == CUDA_SUCCESS) {
    aq_context_drop(parting.share, parting.name);
    aq_context_cancel(parting.share);
  } else {
    aq_context_put_back(parting.share, parting.name, context);
    aq_contexts_add(context, parting.share);
  }
  aq_leaving_end(parting.leaving, result == CUDA_SUCCESS);
  return result;
}

CUresult cuCtxDestroy(CUcontext context) {
  if (!AQ_REAL(cuCtxDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  struct parting parting = leave(context);
  return destroyed(AQ_REAL(cuCtxDestroy)(context), context, parting);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  if (!AQ_REAL(cuCtxDestroy_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  struct parting parting = leave(context);
  return destroyed(AQ_REAL(cuCtxDestroy_v2)(context), context, parting);
}

CUresult cuCtxAttach(CUcontext *context, unsigned int flags) {
  if (!AQ_REAL(cuCtxAttach))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuCtxAttach)(context, flags);
  if (result == CUDA_SUCCESS && aq_depth == 0)
    aq_contexts_use(*context, 1);
  return result;
}

/* Ends the context, unless it was attached to. */
CUresult cuCtxDetach(CUcontext context) {
  if (!AQ_REAL(cuCtxDetach))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth == 0 && aq_contexts_use(context, -1)) {
    CUresult result = AQ_REAL(cuCtxDetach)(context);
    if (result != CUDA_SUCCESS)
      aq_contexts_use(context, 1);
    return result;
  }
  struct parting parting = leave(context);
  return destroyed(AQ_REAL(cuCtxDetach)(context), context, parting);
}

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice dev) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuGLCtxCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuGLCtxCreate)(context, flags, dev);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuGLCtxCreate)(&made, flags, dev);
  return settle(result, share, context, made);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuGLCtxCreate_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuGLCtxCreate_v2)(context, flags, dev);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuGLCtxCreate_v2)(&made, flags, dev);
  return settle(result, share, context, made);
}

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice dev, VdpDevice vdp,
                          VdpGetProcAddress *lookup) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuVDPAUCtxCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuVDPAUCtxCreate)(context, flags, dev, vdp, lookup);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuVDPAUCtxCreate)(&made, flags, dev, vdp, lookup);
  return settle(result, share, context, made);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice dev, VdpDevice vdp,
                             VdpGetProcAddress *lookup) {
  struct aq_share *share;
  CUcontext made = NULL;
  if (!AQ_REAL(cuVDPAUCtxCreate_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuVDPAUCtxCreate_v2)(context, flags, dev, vdp, lookup);
  CUresult result = begin(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuVDPAUCtxCreate_v2)(&made, flags, dev, vdp, lookup);
  return settle(result, share, context, made);
}

/* --- green contexts: each holds a reference to the primary one --- */

/* It is active: its handle comes without a cost. */
static CUcontext primary_of(CUdevice dev) {
  CUcontext context = NULL;
  if (AQ_REAL(cuDevicePrimaryCtxRetain) && AQ_REAL(cuDevicePrimaryCtxRelease_v2) &&
      AQ_REAL(cuDevicePrimaryCtxRetain)(&context, dev) == CUDA_SUCCESS)
    AQ_REAL(cuDevicePrimaryCtxRelease_v2)(dev);
  return context;
}

CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc resources, CUdevice dev,
                          unsigned int flags) {
  struct aq_share *share;
  CUgreenCtx made = NULL;
  if (!AQ_REAL(cuGreenCtxCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !context)
    return AQ_REAL(cuGreenCtxCreate)(context, resources, dev, flags);
  CUresult result = payer(dev, &share);
  if (result != CUDA_SUCCESS)
    return result;
  if (!enter_primary(dev, share))
    return CUDA_ERROR_OUT_OF_MEMORY;
  aq_depth++;
  result = AQ_REAL(cuGreenCtxCreate)(&made, resources, dev, flags);
  CUcontext primary = result == CUDA_SUCCESS ? primary_of(dev) : NULL;
  aq_depth--;
  aq_primary_leave(dev, share, primary);
  if (result != CUDA_SUCCESS)
    return result;
  aq_contexts_add_green(made, dev);
  *context = made;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  CUdevice device = -1;
  if (!AQ_REAL(cuGreenCtxDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !aq_contexts_remove_green(context, &device))
    return AQ_REAL(cuGreenCtxDestroy)(context);
  struct aq_share *share = aq_device_share(device);
  aq_probes_drop(NULL); /* some may be of its own context */
  struct aq_leaving *leaving = aq_leaving_take(aq_primary_context(device));
  CUresult result = AQ_REAL(cuGreenCtxDestroy)(context);
  if (result != CUDA_SUCCESS)
    aq_contexts_add_green(context, device);
  bool ended =
      result == CUDA_SUCCESS && share && AQ_REAL(cuDevicePrimaryCtxGetState) && settle_primary(device, share);
  aq_leaving_end(leaving, ended);
  return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
  if (!AQ_REAL(cuCtxFromGreenCtx))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuCtxFromGreenCtx)(context, green);
  if (result == CUDA_SUCCESS && aq_depth == 0)
    aq_contexts_add_alias(*context, green);
  return result;
}
