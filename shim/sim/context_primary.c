/* SPDX-License-Identifier: Apache-2.0
 *
 * Primary contexts: one for each device, as long as somebody retains it.
 */
#include "context_life.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
  CUresult result = context_enter_device(dev);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pctx) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct primary *primary = &driver.primary[dev];
  if (!primary->context) {
    result = context_create(dev, primary->flags, true, &primary->context);
  }
  if (result == CUDA_SUCCESS) {
    primary->retains++;
    *pctx = primary->context;
  }
  return driver_leave(result);
}

static CUresult primary_end(CUdevice dev, bool reset) {
  CUresult result = context_enter_device(dev);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct primary *primary = &driver.primary[dev];
  if (!reset && primary->retains == 0) {
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT);
  }
  primary->retains = reset ? 0 : primary->retains - 1;
  if (primary->retains == 0 && primary->context) {
    context_destroy(primary->context);
    primary->context = NULL;
  }
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  return primary_end(dev, false);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return primary_end(dev, false);
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  return primary_end(dev, true);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return primary_end(dev, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
  CUresult result = context_enter_device(dev);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!flags || !active) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *flags = driver.primary[dev].flags;
  *active = driver.primary[dev].context != NULL;
  return driver_leave(CUDA_SUCCESS);
}

static CUresult set_primary_flags(CUdevice dev, unsigned flags) {
  CUresult result = context_enter_device(dev);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!context_flags_are_valid(flags)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  driver.primary[dev].flags = flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return set_primary_flags(dev, flags);
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  return set_primary_flags(dev, flags);
}
