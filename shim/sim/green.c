/* SPDX-License-Identifier: Apache-2.0
 *
 * Green contexts: a part of a device's multiprocessors, in its primary context,
 * which each of them retains. They cost nothing of their own, and the part is
 * remembered, not enforced.
 */
#include <string.h>

#include "memory.h"
#include "objects.h"
#include "profiles.h"

/* A resource that comes from here, in the bytes that are the driver's. */
struct resource_mark {
  uint64_t magic;
  int device;
};

#define RESOURCE_MAGIC 0x43525347ULL

struct CUdevResourceDesc_st {
  CUdevice device;
  CUdevResource resource;
};

struct CUgreenCtx_st {
  CUdevice device;
  CUcontext primary;
  CUdevResource resource;
  uint64_t id;
};

static struct objects descriptions = {.size = sizeof(struct CUdevResourceDesc_st)};
static struct objects greens = {.size = sizeof(struct CUgreenCtx_st)};

/* CUDA programming guide, "Green contexts": the least a part can have, and its step. */
static unsigned least_part(const struct sim_profile *profile) {
  return profile->major >= 9 ? 8 : profile->major == 8 ? 4 : 2;
}
static unsigned step(const struct sim_profile *profile) {
  return profile->major >= 9 ? 8 : 2;
}

static const struct sim_profile *profile_of(CUdevice device) {
  return driver_profile(driver.gpu[device]);
}

static CUdevResource part(CUdevice device, unsigned multiprocessors) {
  const struct sim_profile *profile = profile_of(device);
  struct resource_mark mark = {.magic = RESOURCE_MAGIC, .device = device};
  CUdevResource resource = {.type = CU_DEV_RESOURCE_TYPE_SM,
                            .sm = {.smCount = multiprocessors,
                                   .minSmPartitionSize = least_part(profile),
                                   .smCoscheduledAlignment = step(profile)}};
  memcpy(resource._internal_padding, &mark, sizeof mark);
  return resource;
}

static bool is_part(const CUdevResource *resource, CUdevice *device) {
  struct resource_mark mark;
  memcpy(&mark, resource->_internal_padding, sizeof mark);
  *device = mark.device;
  return mark.magic == RESOURCE_MAGIC && driver_is_device(mark.device) &&
         resource->type == CU_DEV_RESOURCE_TYPE_SM && resource->sm.smCount > 0 &&
         resource->sm.smCount <= profile_of(mark.device)->multiprocessors;
}

static CUresult whole(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
  if (!resource) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (type != CU_DEV_RESOURCE_TYPE_SM) {
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  }
  *resource = part(device, profile_of(device)->multiprocessors);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return driver_leave(driver_is_device(device) ? whole(device, resource, type) : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUcontext context = hCtx;
  result = hCtx ? CUDA_SUCCESS : context_current(&context);
  if (result == CUDA_SUCCESS && !context_is_live(context)) {
    result = CUDA_ERROR_INVALID_CONTEXT;
  }
  return driver_leave(result == CUDA_SUCCESS ? whole((CUdevice)context->device, resource, type) : result);
}

/* --- parts --- */

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                     const CUdevResource *input, CUdevResource *remainder, unsigned int flags,
                                     unsigned int minCount) {
  CUdevice device;
  CUresult entered = driver_enter();
  if (entered != CUDA_SUCCESS) {
    return entered;
  }
  const unsigned known =
      CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
  if (!nbGroups || !input || (flags & ~known) || !is_part(input, &device) || minCount > input->sm.smCount) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  bool fine = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
  unsigned least = fine ? 2 : least_part(profile_of(device));
  unsigned each =
      (unsigned)memory_round(minCount > least ? minCount : least, fine ? 2 : step(profile_of(device)));
  unsigned possible = input->sm.smCount / each;
  if (possible == 0) {
    return driver_leave(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  }
  unsigned groups = result && *nbGroups < possible ? *nbGroups : possible;
  for (unsigned group = 0; result && group < groups; group++) {
    result[group] = part(device, each);
  }
  unsigned rest = input->sm.smCount - groups * each;
  if (result && remainder) {
    *remainder = rest ? part(device, rest) : (CUdevResource){.type = CU_DEV_RESOURCE_TYPE_INVALID};
  }
  *nbGroups = groups;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                   unsigned int nbResources) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUdevice device = 0;
  unsigned sum = 0;
  bool valid = phDesc && resources && nbResources > 0;
  for (unsigned i = 0; valid && i < nbResources; i++) {
    CUdevice of = 0;
    valid = is_part(&resources[i], &of) && (i == 0 || of == device);
    device = of;
    sum += resources[i].sm.smCount;
  }
  if (!valid || sum > profile_of(device)->multiprocessors) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUdevResourceDesc description = objects_take(&descriptions);
  if (!description) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *description = (struct CUdevResourceDesc_st){.device = device, .resource = part(device, sum)};
  *phDesc = description;
  return driver_leave(CUDA_SUCCESS);
}

/* --- contexts --- */

static CUresult check(const CUgreenCtx *made, CUdevResourceDesc description, CUdevice device,
                      unsigned flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!made || !objects_has(&descriptions, description) || (flags & ~(unsigned)CU_GREEN_CTX_DEFAULT_STREAM)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(description->device == device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  CUcontext primary;
  CUresult result = check(phCtx, desc, dev, flags);
  result = result == CUDA_SUCCESS ? cuDevicePrimaryCtxRetain(&primary, dev) : result;
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = driver_enter();
  CUgreenCtx green = result == CUDA_SUCCESS ? objects_take(&greens) : NULL;
  if (!green) {
    result = result == CUDA_SUCCESS ? driver_leave(CUDA_ERROR_OUT_OF_MEMORY) : result;
    cuDevicePrimaryCtxRelease_v2(dev);
    return result;
  }
  *green = (struct CUgreenCtx_st){
      .device = dev, .primary = primary, .resource = desc->resource, .id = ++driver.serial};
  *phCtx = green;
  return driver_leave(CUDA_SUCCESS);
}

/* Lock the driver; fail unless this is a green context. */
static CUresult enter_green(CUgreenCtx green) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return objects_has(&greens, green) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
  CUresult result = enter_green(hCtx);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUdevice device = hCtx->device;
  objects_give(&greens, hCtx);
  driver_unlock();
  return cuDevicePrimaryCtxRelease_v2(device);
}

/* What is done in a green context is done in its primary one: memory is the same for both. */
CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx) {
  CUresult result = enter_green(hCtx);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pContext) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *pContext = hCtx->primary;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type) {
  CUresult result = enter_green(hCtx);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!resource) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (type != CU_DEV_RESOURCE_TYPE_SM) {
    return driver_leave(CUDA_ERROR_INVALID_RESOURCE_TYPE);
  }
  *resource = hCtx->resource;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId) {
  CUresult result = enter_green(greenCtx);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!greenCtxId) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *greenCtxId = greenCtx->id;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
  CUresult result = enter_green(greenCtx);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUcontext primary = greenCtx->primary;
  driver_unlock();
  if (flags != CU_STREAM_NON_BLOCKING) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  result = cuCtxPushCurrent_v2(primary);
  if (result == CUDA_SUCCESS) {
    result = cuStreamCreateWithPriority(phStream, flags, priority);
    cuCtxPopCurrent_v2(&primary);
  }
  return result;
}
