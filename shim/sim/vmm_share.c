/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory between processes, and what can be asked about it.
 */
#include "vmm.h"

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!granularity || !prop ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUmemAllocationProp wanted = *prop;
  result = vmm_check(&wanted);
  if (result == CUDA_SUCCESS) {
    *granularity = VMM_GRAIN;
  }
  return driver_leave(result);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct vmm_memory *memory = vmm_find(handle);
  if (!prop || !memory || memory->kind == VMM_MULTICAST) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *prop = memory->prop;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct vmm_memory *memory = vmm_find(handle);
  if (!shareableHandle || flags != 0 || !memory || handleType == CU_MEM_HANDLE_TYPE_NONE ||
      !(memory->prop.requestedHandleTypes & handleType)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  int fd = shared_export(&driver.books, &memory->shared);
  if (fd < 0) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *(int *)shareableHandle = fd;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  struct shared shared;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return driver_leave(shHandleType ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE);
  }
  if (!handle || !shared_import(&driver.books, (int)(intptr_t)osHandle, SIM_SHARED_MEMORY, &shared)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  const struct sim_shared *about = shared_about(&driver.books, &shared);
  bool device = about->flags == VMM_DEVICE;
  bool beyond = device && (driver_ordinal(about->gpu) < 0 || !driver_shares(shared.slot));
  struct vmm_memory *memory = beyond ? NULL : vmm_new();
  if (!memory) {
    result = beyond ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
    shared_drop(&driver.books, &shared);
    return driver_leave(result);
  }
  memory->kind = about->flags;
  memory->gpu = about->gpu;
  memory->size = about->size;
  memory->shared = shared;
  memory->prop = (CUmemAllocationProp){
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      .location = {.type = device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST_NUMA,
                   .id = device ? driver_ordinal(about->gpu) : 0}};
  *handle = vmm_handle(memory);
  return driver_leave(CUDA_SUCCESS);
}
