/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking contexts what they are, and waiting for all of one's work.
 */
#include "capture.h"
#include "pool.h"
#include "stream.h"

/* Lock the driver and find `given`, or the current context for NULL. */
static CUresult enter_context(CUcontext given, CUcontext *context) {
  CUresult result = driver_enter();
  *context = NULL;
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!given) {
    result = context_current(context);
  } else if (context_is_live(given)) {
    *context = given;
  } else {
    result = CUDA_ERROR_INVALID_CONTEXT;
  }
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx) {
  CUcontext context;
  CUresult result = enter_context(ctx, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!device) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *device = (CUdevice)context->device;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device) {
  return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  CUcontext context;
  CUresult result;
  while ((result = enter_context(ctx, &context)) == CUDA_SUCCESS) {
    if (capture_forbids_unsafe()) {
      return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    bool done = context_is_done(context);
    if (done) {
      pools_synchronized();
    }
    uint64_t left = done ? 0 : context_left_ns(context);
    driver_unlock();
    if (done) {
      return CUDA_SUCCESS;
    }
    ctx = context;
    work_pause(left);
  }
  return result;
}

CUresult cuCtxSynchronize(void) {
  return cuCtxSynchronize_v2(NULL);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
  CUcontext context;
  CUresult result = enter_context(ctx, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!version) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *version = 3020; /* what drivers answer for every context of the 64-bit ABI */
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetFlags(unsigned int *flags) {
  CUcontext context;
  CUresult result = enter_context(NULL, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!flags) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *flags = context->flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId) {
  CUcontext context;
  CUresult result = enter_context(ctx, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!ctxId) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *ctxId = context->serial;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
  CUcontext context;
  CUresult result = enter_context(NULL, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (leastPriority) {
    *leastPriority = 0;
  }
  if (greatestPriority) {
    *greatestPriority = -5;
  }
  return driver_leave(CUDA_SUCCESS);
}
