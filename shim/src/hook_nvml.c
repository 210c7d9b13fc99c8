/* SPDX-License-Identifier: Apache-2.0
 *
 * What NVML says of memory: the share's.
 */
#include "books.h"
#include "hooks.h"
#include "nvml_share.h"
#include "state.h"

enum { MIB_BITS = 20 };

/* Maps the shares; takes no slot, as a reader holds no memory. */
static bool may_start(void) {
  if (aq_depth > 0)
    return true;
  aq_nvml_share_reset();
  return aq_attach();
}

nvmlReturn_t nvmlInit(void) {
  if (!AQ_REAL(nvmlInit))
    return NVML_ERROR_LIBRARY_NOT_FOUND;
  return may_start() ? AQ_REAL(nvmlInit)() : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlInit_v2(void) {
  if (!AQ_REAL(nvmlInit_v2))
    return NVML_ERROR_LIBRARY_NOT_FOUND;
  return may_start() ? AQ_REAL(nvmlInit_v2)() : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  if (!AQ_REAL(nvmlInitWithFlags))
    return NVML_ERROR_LIBRARY_NOT_FOUND;
  return may_start() ? AQ_REAL(nvmlInitWithFlags)(flags) : NVML_ERROR_NO_PERMISSION;
}

static nvmlReturn_t shared_memory(nvmlReturn_t result, nvmlDevice_t device, const nvmlMemory_t *now,
                                  nvmlMemory_t *memory) {
  if (result != NVML_SUCCESS)
    return result;
  struct aq_share *share = aq_nvml_share(device);
  if (!share)
    return NVML_ERROR_NO_PERMISSION;
  if (!aq_share_is_limited(share)) {
    *memory = *now;
    return NVML_SUCCESS;
  }
  struct aq_view view = aq_view(share, now->total, now->free);
  memory->total = view.total;
  memory->free = view.free;
  memory->used = view.used;
  return NVML_SUCCESS;
}

AQ_HOT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  nvmlMemory_t now;
  if (!AQ_REAL(nvmlDeviceGetMemoryInfo))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !memory)
    return AQ_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
  return shared_memory(AQ_REAL(nvmlDeviceGetMemoryInfo)(device, &now), device, &now, memory);
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
  nvmlMemory_t now;
  if (!AQ_REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !memory)
    return AQ_REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, memory);
  return shared_memory(AQ_REAL(nvmlDeviceGetConfComputeProtectedMemoryUsage)(device, &now), device, &now,
                       memory);
}

AQ_HOT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  nvmlMemory_v2_t now;
  if (!AQ_REAL(nvmlDeviceGetMemoryInfo_v2))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !memory)
    return AQ_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
  now = *memory; /* holds the version that the caller asks for */
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetMemoryInfo_v2)(device, &now);
  if (result != NVML_SUCCESS)
    return result;
  struct aq_share *share = aq_nvml_share(device);
  if (!share)
    return NVML_ERROR_NO_PERMISSION;
  if (aq_share_is_limited(share)) {
    struct aq_view view = aq_view(share, now.total, now.free);
    now.total = view.total;
    now.free = view.free;
    now.used = view.used;
    now.reserved = 0; /* the driver's, not the share's */
  }
  *memory = now;
  return NVML_SUCCESS;
}

/* The window that the CPU has on the memory: no more of it than the share, and no neighbour's use of it. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
  nvmlBAR1Memory_t now;
  if (!AQ_REAL(nvmlDeviceGetBAR1MemoryInfo))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !memory)
    return AQ_REAL(nvmlDeviceGetBAR1MemoryInfo)(device, memory);
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetBAR1MemoryInfo)(device, &now);
  if (result != NVML_SUCCESS)
    return result;
  struct aq_share *share = aq_nvml_share(device);
  if (!share)
    return NVML_ERROR_NO_PERMISSION;
  if (aq_share_is_limited(share)) {
    struct aq_view view = aq_view(share, now.bar1Total, now.bar1Total);
    now.bar1Total = view.total;
    now.bar1Used = now.bar1Used < view.used ? now.bar1Used : view.used;
    now.bar1Free = now.bar1Total - now.bar1Used;
  }
  *memory = now;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
  nvmlDeviceAttributes_t now;
  if (!AQ_REAL(nvmlDeviceGetAttributes_v2))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !attributes)
    return AQ_REAL(nvmlDeviceGetAttributes_v2)(device, attributes);
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetAttributes_v2)(device, &now);
  if (result != NVML_SUCCESS)
    return result;
  const struct aq_share *share = aq_nvml_share(device);
  if (!share)
    return NVML_ERROR_NO_PERMISSION;
  now.memorySizeMB = aq_view_total(share, now.memorySizeMB << MIB_BITS) >> MIB_BITS;
  *attributes = now;
  return NVML_SUCCESS;
}
