/* SPDX-License-Identifier: Apache-2.0
 *
 * Launching kernels. They do nothing but take time.
 */
#include "launch.h"

#include <string.h>

#include "capture.h"
#include "mps.h"
#include "profiles.h"
#include "stream.h"

static const unsigned most_grid[3] = {2147483647U, 65535U, 65535U};
static const unsigned most_block[3] = {1024U, 1024U, 64U};

CUresult launch_check(const struct launch *launch, CUcontext context, struct engine_cost *cost) {
  CUfunction function;
  CUresult result = function_of(launch->handle, context, &function);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (function->module->context != context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  uint64_t blocks = 1;
  uint64_t threads = 1;
  for (int i = 0; i < 3; i++) {
    if (launch->grid[i] == 0 || launch->grid[i] > most_grid[i] || launch->block[i] == 0 ||
        launch->block[i] > most_block[i]) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    blocks *= launch->grid[i];
    threads *= launch->block[i];
  }
  if (threads > 1024 || launch->shared > (unsigned)function->dynamic_shared ||
      (launch->parameters && launch->extra)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (launch->cooperative) {
    const struct sim_profile *profile = driver_profile(context->gpu);
    uint64_t resident = profile->threads_per_multiprocessor / ((threads + 31) / 32 * 32);
    if (blocks > resident * profile->multiprocessors) {
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
  }
  *cost = function_cost(function, blocks, (unsigned)threads, launch->parameters, launch->extra);
  return function_load(function);
}

/* A full queue blocks, without the lock. */
/* Kernels compute nothing; one whose name says so reads where it must not. */
static bool faults(const struct launch *launch, CUcontext context) {
  CUfunction function;
  return function_of(launch->handle, context, &function) == CUDA_SUCCESS &&
         strstr(function_described(function)->name, "_fault") != NULL;
}

static CUresult run(const struct launch *launch, CUstream handle, bool per_thread) {
  CUstream stream;
  struct engine_cost cost;
  CUresult result;
  while ((result = driver_enter()) == CUDA_SUCCESS) {
    result = stream_find(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream_blocked_by_capture(stream)) {
      capture_spoil_implicit(stream);
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (result == CUDA_SUCCESS) {
      result = launch_check(launch, stream->context, &cost);
    }
    if (result != CUDA_SUCCESS) {
      return driver_leave(result);
    }
    if (capture_of(stream)) {
      return driver_leave(capture_kernel(stream, launch, cost));
    }
    if (work_has_room(stream)) {
      result = work_kernel(stream, cost);
      if (result == CUDA_SUCCESS && faults(launch, stream->context)) {
        mps_raise(CUDA_ERROR_ILLEGAL_ADDRESS); /* told by the next call, as always */
      }
      return driver_leave(result);
    }
    uint64_t left = work_room_ns(stream);
    driver_unlock();
    work_pause(left);
  }
  return result;
}

static CUresult plain(CUfunction f, const unsigned size[6], unsigned shared, CUstream stream, bool per_thread,
                      void **parameters, void **extra, bool cooperative) {
  struct launch launch = {.handle = f,
                          .grid = {size[0], size[1], size[2]},
                          .block = {size[3], size[4], size[5]},
                          .shared = shared,
                          .parameters = parameters,
                          .extra = extra,
                          .cooperative = cooperative};
  return run(&launch, stream, per_thread);
}

#define SIZES                                                                                                \
  (const unsigned[6]) {                                                                                      \
    gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ                                            \
  }

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra) {
  return plain(f, SIZES, sharedMemBytes, hStream, false, kernelParams, extra, false);
}
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void **kernelParams, void **extra) {
  return plain(f, SIZES, sharedMemBytes, hStream, true, kernelParams, extra, false);
}
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                   unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                   void **kernelParams) {
  return plain(f, SIZES, sharedMemBytes, hStream, false, kernelParams, NULL, true);
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams) {
  return plain(f, SIZES, sharedMemBytes, hStream, true, kernelParams, NULL, true);
}

static CUresult extended(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra,
                         bool per_thread) {
  if (!config || (config->numAttrs > 0 && !config->attrs)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      cooperative = config->attrs[i].value.cooperative;
    }
  }
  const unsigned sizes[6] = {config->gridDimX,  config->gridDimY,  config->gridDimZ,
                             config->blockDimX, config->blockDimY, config->blockDimZ};
  return plain(f, sizes, config->sharedMemBytes, config->hStream, per_thread, parameters, extra, cooperative);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {
  return extended(config, f, kernelParams, extra, false);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                               void **extra) {
  return extended(config, f, kernelParams, extra, true);
}

/* cuda.h: all streams must be made, and of different devices; all are launched or none. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                              unsigned int flags) {
  if (!launchParamsList || numDevices == 0 || numDevices > SIM_GPUS || flags > 3) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < numDevices; i++) {
    const CUDA_LAUNCH_PARAMS *one = &launchParamsList[i];
    const unsigned sizes[6] = {one->gridDimX,  one->gridDimY,  one->gridDimZ,
                               one->blockDimX, one->blockDimY, one->blockDimZ};
    CUresult result = one->hStream ? plain(one->function, sizes, one->sharedMemBytes, one->hStream, false,
                                           one->kernelParams, NULL, true)
                                   : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

/* --- the way of CUDA 1 --- */

static CUresult old(CUfunction f, int width, int height, CUstream stream) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!function_is_live(f) || width <= 0 || height <= 0) {
    return driver_leave(width > 0 && height > 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
  }
  const unsigned sizes[6] = {(unsigned)width, (unsigned)height, 1,
                             f->old.block[0], f->old.block[1],  f->old.block[2]};
  unsigned shared = f->old.shared;
  driver_unlock();
  return plain(f, sizes, shared, stream, false, NULL, NULL, false);
}

CUresult cuLaunch(CUfunction f) {
  return old(f, 1, 1, NULL);
}
CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  return old(f, grid_width, grid_height, NULL);
}
CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  return old(f, grid_width, grid_height, hStream);
}

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!function_is_live(hfunc) || x <= 0 || y <= 0 || z <= 0) {
    return driver_leave(x > 0 && y > 0 && z > 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
  }
  hfunc->old.block[0] = (unsigned)x;
  hfunc->old.block[1] = (unsigned)y;
  hfunc->old.block[2] = (unsigned)z;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!function_is_live(hfunc)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  hfunc->old.shared = bytes;
  return driver_leave(CUDA_SUCCESS);
}
