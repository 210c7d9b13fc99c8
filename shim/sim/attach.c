/* SPDX-License-Identifier: Apache-2.0
 *
 * Usage counts of made contexts, as CUDA 2 had them.
 */
#include "driver.h"

/* cuda.h: the current context, and only a made one. */
static CUresult enter_made(CUcontext *context) {
  CUresult result = driver_enter_context(context);
  if (result == CUDA_SUCCESS && (*context)->primary) {
    result = driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  }
  return result;
}

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags) {
  CUcontext context;
  CUresult result = enter_made(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pctx || flags != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  context->attached++;
  *pctx = context;
  return driver_leave(CUDA_SUCCESS);
}

/* The last one to detach destroys it. */
CUresult cuCtxDetach(CUcontext ctx) {
  CUcontext context;
  CUresult result = enter_made(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (ctx != context) {
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  }
  if (context->attached > 0) {
    context->attached--;
    return driver_leave(CUDA_SUCCESS);
  }
  driver_unlock();
  return cuCtxDestroy_v2(ctx);
}
