/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the variables of modules are.
 */
#include "module.h"
#include "module_library.h"

static CUresult find(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes) {
  const struct image_variable *variable = image_variable(module->image, name);
  if (!variable) {
    return CUDA_ERROR_NOT_FOUND;
  }
  CUresult result = module_load(module);
  if (result == CUDA_SUCCESS) {
    *address = module->variables->address + variable->offset;
    *bytes = variable->size;
  }
  return result;
}

/* cuda.h: either pointer may be NULL, not both. */
CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) {
  CUdeviceptr address;
  size_t size;
  CUresult result = module_enter(hmod);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = name && (dptr || bytes) ? find(hmod, name, &address, &size) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS && dptr) {
    *dptr = address;
  }
  if (result == CUDA_SUCCESS && bytes) {
    *bytes = size;
  }
  return driver_leave(result);
}

/* Addresses are larger than those of CUDA 2. */
CUresult cuModuleGetGlobal(CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule hmod, const char *name) {
  CUdeviceptr address;
  size_t size;
  CUresult result = cuModuleGetGlobal_v2(&address, &size, hmod, name);
  if (result == CUDA_SUCCESS && dptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (result == CUDA_SUCCESS && bytes) {
    *bytes = size > UINT32_MAX ? UINT32_MAX : (unsigned)size;
  }
  return result;
}

/* Of the library's module in the current context. */
CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name) {
  CUmodule module;
  CUresult result = cuLibraryGetModule(&module, library);
  return result == CUDA_SUCCESS ? cuModuleGetGlobal_v2(dptr, bytes, module, name) : result;
}
