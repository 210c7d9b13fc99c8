/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management. The device is the location's, not the current context's; memory on
 * the host and imports are nobody's charge.
 */
#include "books.h"
#include "hooks.h"
#include "state.h"
#include "vmm.h"

#define PAGE (2ULL << 20)

static bool ours(void) {
  return aq_depth == 0 && aq_is_ready();
}

AQ_RARE static CUresult give_up(CUmemGenericAllocationHandle handle) {
  if (AQ_REAL(cuMemRelease))
    AQ_REAL(cuMemRelease)(handle);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

AQ_HOT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *prop, unsigned long long flags) {
  struct aq_charge charge;
  CUmemGenericAllocationHandle made = 0;
  if (!AQ_REAL(cuMemCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUdevice device = ours() && handle && prop ? aq_location_device(&prop->location) : -1;
  if (!aq_device_exists(device))
    return AQ_REAL(cuMemCreate)(handle, size, prop, flags);
  if (!aq_device_share(device))
    return CUDA_ERROR_NOT_PERMITTED;
  uint64_t bytes = size > UINT64_MAX - PAGE ? UINT64_MAX : (size + PAGE - 1) & ~(PAGE - 1);
  if (!aq_reserve(aq_device_share(device), bytes, &charge))
    return CUDA_ERROR_OUT_OF_MEMORY;
  aq_depth++;
  CUresult result = AQ_REAL(cuMemCreate)(&made, size, prop, flags);
  aq_depth--;
  if (result == CUDA_SUCCESS && !aq_vmm_created(&charge, made))
    result = give_up(made);
  if (result != CUDA_SUCCESS)
    aq_cancel(&charge);
  else
    *handle = made;
  return result;
}

AQ_HOT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  struct aq_freed freed;
  if (!AQ_REAL(cuMemRelease))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!ours() || !aq_vmm_release_begin(handle, &freed))
    return AQ_REAL(cuMemRelease)(handle);
  aq_depth++;
  CUresult result = AQ_REAL(cuMemRelease)(handle);
  aq_depth--;
  aq_vmm_release_end(&freed, result == CUDA_SUCCESS);
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  if (!AQ_REAL(cuMemRetainAllocationHandle))
    return CUDA_ERROR_NOT_SUPPORTED;
  uint32_t number = ours() ? aq_vmm_hold_mapped((CUdeviceptr)(uintptr_t)addr) : 0;
  CUresult result = AQ_REAL(cuMemRetainAllocationHandle)(handle, addr);
  if (number && result == CUDA_SUCCESS)
    aq_vmm_add_handle(*handle, number);
  else
    aq_vmm_drop(number);
  return result;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  if (!AQ_REAL(cuMemExportToShareableHandle))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuMemExportToShareableHandle)(out, handle, type, flags);
  if (result == CUDA_SUCCESS && ours() && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    aq_vmm_exported(handle, *(const int *)out);
  return result;
}

/* Not new memory; but what this process exported itself has one holder more. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type) {
  if (!AQ_REAL(cuMemImportFromShareableHandle))
    return CUDA_ERROR_NOT_SUPPORTED;
  bool descriptor = ours() && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  uint32_t number = descriptor ? aq_vmm_hold_exported((int)(intptr_t)os_handle) : 0;
  CUresult result = AQ_REAL(cuMemImportFromShareableHandle)(handle, os_handle, type);
  if (result != CUDA_SUCCESS)
    aq_vmm_drop(number);
  else if (number)
    aq_vmm_add_handle(*handle, number);
  else if (ours())
    aq_vmm_repeat_handle(*handle);
  return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  uint32_t number = 0;
  if (!AQ_REAL(cuMemMap))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!ours())
    return AQ_REAL(cuMemMap)(ptr, size, offset, handle, flags);
  if (!aq_vmm_hold(handle, &number))
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = AQ_REAL(cuMemMap)(ptr, size, offset, handle, flags);
  if (result == CUDA_SUCCESS && !aq_vmm_mapped(ptr, size, number)) {
    if (AQ_REAL(cuMemUnmap))
      AQ_REAL(cuMemUnmap)(ptr, size);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS)
    aq_vmm_drop(number);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  struct aq_unmapped unmapped;
  if (!AQ_REAL(cuMemUnmap))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!ours())
    return AQ_REAL(cuMemUnmap)(ptr, size);
  aq_vmm_unmap_begin(ptr, size, &unmapped);
  CUresult result = AQ_REAL(cuMemUnmap)(ptr, size);
  aq_vmm_unmap_end(&unmapped, result == CUDA_SUCCESS);
  return result;
}

/* --- multicast objects --- */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
  if (!AQ_REAL(cuMulticastCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuMulticastCreate)(handle, prop);
  if (result == CUDA_SUCCESS && ours())
    aq_vmm_multicast_created(*handle);
  return result;
}

/* Memory stays while it is bound. */
static CUresult bound(CUresult result, CUmemGenericAllocationHandle handle, size_t offset, uint32_t number) {
  if (result != CUDA_SUCCESS)
    aq_vmm_drop(number);
  else if (number)
    aq_vmm_bound(handle, offset, number);
  return result;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mc, size_t mc_offset,
                            CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                            unsigned long long flags) {
  uint32_t number = 0;
  if (!AQ_REAL(cuMulticastBindMem))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (ours() && !aq_vmm_hold(handle, &number))
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = AQ_REAL(cuMulticastBindMem)(mc, mc_offset, handle, offset, size, flags);
  return bound(result, mc, mc_offset, number);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mc, CUdevice dev, size_t mc_offset,
                               CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                               unsigned long long flags) {
  uint32_t number = 0;
  if (!AQ_REAL(cuMulticastBindMem_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (ours() && !aq_vmm_hold(handle, &number))
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = AQ_REAL(cuMulticastBindMem_v2)(mc, dev, mc_offset, handle, offset, size, flags);
  return bound(result, mc, mc_offset, number);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mc, size_t mc_offset, CUdeviceptr pointer,
                             size_t size, unsigned long long flags) {
  if (!AQ_REAL(cuMulticastBindAddr))
    return CUDA_ERROR_NOT_SUPPORTED;
  uint32_t number = ours() ? aq_vmm_hold_mapped(pointer) : 0;
  return bound(AQ_REAL(cuMulticastBindAddr)(mc, mc_offset, pointer, size, flags), mc, mc_offset, number);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mc, CUdevice dev, size_t mc_offset,
                                CUdeviceptr pointer, size_t size, unsigned long long flags) {
  if (!AQ_REAL(cuMulticastBindAddr_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  uint32_t number = ours() ? aq_vmm_hold_mapped(pointer) : 0;
  CUresult result = AQ_REAL(cuMulticastBindAddr_v2)(mc, dev, mc_offset, pointer, size, flags);
  return bound(result, mc, mc_offset, number);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mc, CUdevice dev, size_t mc_offset, size_t size) {
  struct aq_freed freed;
  if (!AQ_REAL(cuMulticastUnbind))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!ours() || !aq_vmm_unbind_begin(mc, dev, mc_offset, &freed))
    return AQ_REAL(cuMulticastUnbind)(mc, dev, mc_offset, size);
  CUresult result = AQ_REAL(cuMulticastUnbind)(mc, dev, mc_offset, size);
  aq_vmm_unbind_end(&freed, result == CUDA_SUCCESS);
  return result;
}
