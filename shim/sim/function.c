/* SPDX-License-Identifier: Apache-2.0
 *
 * What functions are, what a launch of one takes, and how many blocks fit.
 */
#include <string.h>

#include "module.h"
#include "profiles.h"

#define REGISTERS  32
#define DEFAULT_NS 5000ULL /* of a wave of blocks of a kernel that does not say how long it is */
#define MOST_BLOCKS_PER_MULTIPROCESSOR 32U

static const struct sim_profile *profile_of(const struct CUfunc_st *function) {
  return driver_profile(function->module->context->gpu);
}

static unsigned blocks_per_multiprocessor(const struct sim_profile *profile, unsigned threads,
                                          uint64_t shared) {
  unsigned warps = (threads + 31) / 32;
  unsigned blocks = profile->threads_per_multiprocessor / 32 / (warps ? warps : 1);
  unsigned by_registers = 65536U / (REGISTERS * 32 * (warps ? warps : 1));
  unsigned by_shared = (unsigned)(profile->shared_per_multiprocessor / (shared + 1024));
  blocks = blocks < by_registers ? blocks : by_registers;
  blocks = blocks < by_shared ? blocks : by_shared;
  return blocks < MOST_BLOCKS_PER_MULTIPROCESSOR ? blocks : MOST_BLOCKS_PER_MULTIPROCESSOR;
}

/* The first parameter: from the array of pointers, or from the packed buffer. */
static uint64_t first_parameter(void **parameters, void **extra) {
  uint64_t value = 0;
  const void *from = parameters ? parameters[0] : NULL;
  for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      from = extra[i + 1];
    }
  }
  if (from) {
    memcpy(&value, from, sizeof value);
  }
  return value;
}

struct engine_cost function_cost(const struct CUfunc_st *function, uint64_t blocks, unsigned threads,
                                 void **parameters, void **extra) {
  const struct sim_profile *profile = profile_of(function);
  const struct image_kernel *kernel = function_described(function);
  uint64_t lanes = (blocks * ENGINE_LANES + profile->multiprocessors - 1) / profile->multiprocessors;
  struct engine_cost cost = {.lanes = lanes < ENGINE_LANES ? (unsigned)lanes : ENGINE_LANES};
  if (kernel->time == IMAGE_BY_NAME) {
    cost.ns = kernel->ns;
  } else if (kernel->time == IMAGE_BY_PARAMETER) {
    cost.ns = first_parameter(parameters, extra);
  } else {
    unsigned resident = blocks_per_multiprocessor(profile, threads, 0);
    uint64_t wave = (uint64_t)profile->multiprocessors * (resident ? resident : 1);
    cost.ns = (blocks + wave - 1) / wave * DEFAULT_NS;
  }
  return cost;
}

/* --- attributes --- */

static CUresult get_attribute(const struct CUfunc_st *function, CUfunction_attribute attribute, int *value) {
  const struct sim_profile *profile = profile_of(function);
  int version = (int)(profile->major * 10 + profile->minor);
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    *value = 1024;
    break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS:
    *value = REGISTERS;
    break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
    *value = version;
    break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    *value = function->dynamic_shared;
    break;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    *value = function->carveout;
    break;
  default:
    if ((int)attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *value = 0;
  }
  return CUDA_SUCCESS;
}

static CUresult set_attribute(struct CUfunc_st *function, CUfunction_attribute attribute, int value) {
  int most = (int)profile_of(function)->shared_per_multiprocessor - 1024;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= most) {
    function->dynamic_shared = value;
  } else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT && value >= -1 && value <= 100) {
    function->carveout = value;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/* Lock the driver and find the function behind the handle. */
static CUresult enter(CUfunction handle, CUfunction *function) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = function_of(handle, context, function);
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc) {
  CUfunction function;
  CUresult result = enter(hfunc, &function);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return driver_leave(pi ? get_attribute(function, attrib, pi) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  CUfunction function;
  CUresult result = enter(hfunc, &function);
  return result == CUDA_SUCCESS ? driver_leave(set_attribute(function, attrib, value)) : result;
}

/* Of a kernel on a device: by the function in the device's primary context. */
static CUresult enter_kernel(CUkernel kernel, CUdevice dev, CUfunction *function) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!driver_is_device(dev)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  CUcontext context = driver.primary[dev].context;
  result = context || context_current(&context) == CUDA_SUCCESS
               ? function_of((CUfunction)kernel, context, function)
               : CUDA_ERROR_INVALID_CONTEXT;
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  CUfunction function;
  CUresult result = enter_kernel(kernel, dev, &function);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return driver_leave(pi ? get_attribute(function, attrib, pi) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  CUfunction function;
  CUresult result = enter_kernel(kernel, dev, &function);
  return result == CUDA_SUCCESS ? driver_leave(set_attribute(function, attrib, val)) : result;
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  CUfunction function;
  CUresult result = enter(hfunc, &function);
  return result == CUDA_SUCCESS
             ? driver_leave(config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)
             : result;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  CUfunction function;
  CUresult result = enter_kernel(kernel, dev, &function);
  return result == CUDA_SUCCESS
             ? driver_leave(config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS)
             : result;
}

#define OF_FUNCTION(NAME, TYPE, EXPRESSION)                                                                  \
  CUresult NAME(TYPE *output, CUfunction hfunc) {                                                            \
    CUfunction function;                                                                                     \
    CUresult result = enter(hfunc, &function);                                                               \
    if (result != CUDA_SUCCESS) {                                                                            \
      return result;                                                                                         \
    }                                                                                                        \
    if (!output) {                                                                                           \
      return driver_leave(CUDA_ERROR_INVALID_VALUE);                                                         \
    }                                                                                                        \
    *output = (EXPRESSION);                                                                                  \
    return driver_leave(CUDA_SUCCESS);                                                                       \
  }

OF_FUNCTION(cuFuncGetName, const char *, function_described(function)->name)
OF_FUNCTION(cuFuncGetModule, CUmodule, function->module)
OF_FUNCTION(cuFuncIsLoaded, CUfunctionLoadingState,
            function->module->loaded ? CU_FUNCTION_LOADING_STATE_LOADED : CU_FUNCTION_LOADING_STATE_UNLOADED)

CUresult cuFuncLoad(CUfunction hfunc) {
  CUfunction function;
  CUresult result = enter(hfunc, &function);
  return result == CUDA_SUCCESS ? driver_leave(function_load(function)) : result;
}

/* --- occupancy --- */

static CUresult occupancy(int *blocks, CUfunction handle, int threads, size_t shared) {
  CUfunction function;
  CUresult result = enter(handle, &function);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!blocks || threads <= 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *blocks = threads > 1024 || shared > (size_t)function->dynamic_shared
                ? 0
                : (int)blocks_per_multiprocessor(profile_of(function), (unsigned)threads, shared);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return occupancy(numBlocks, func, blockSize, dynamicSMemSize);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags) {
  return flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE
             ? CUDA_ERROR_INVALID_VALUE
             : occupancy(numBlocks, func, blockSize, dynamicSMemSize);
}

/* The largest block, and as many as fill the GPU. */
CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
  CUfunction function;
  CUresult result = enter(func, &function);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!minGridSize || !blockSize || blockSizeLimit < 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  const struct sim_profile *profile = profile_of(function);
  int size = blockSizeLimit > 0 && blockSizeLimit < 1024 ? blockSizeLimit : 1024;
  driver_unlock();
  size_t shared = blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(size) : dynamicSMemSize;
  *blockSize = size;
  *minGridSize = (int)(profile->multiprocessors * blocks_per_multiprocessor(profile, (unsigned)size, shared));
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags) {
  return flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE
             ? CUDA_ERROR_INVALID_VALUE
             : cuOccupancyMaxPotentialBlockSize(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                dynamicSMemSize, blockSizeLimit);
}
