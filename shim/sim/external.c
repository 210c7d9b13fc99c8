/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that other programming interfaces made (Vulkan's, by descriptor):
 * theirs to count, not CUDA's.
 */
#include <fcntl.h>
#include <unistd.h>

#include "array.h"
#include "import.h"

struct CUextMemory_st {
  size_t size;
  CUcontext context;
};

static struct objects externals = {.size = sizeof(struct CUextMemory_st)};

static CUresult check(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *about) {
  if (about->size == 0 || (about->flags & ~(unsigned)CUDA_EXTERNAL_MEMORY_DEDICATED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (about->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return fcntl(about->handle.fd, F_GETFD) >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* cuda.h: the descriptor is the driver's after success. */
CUresult cuImportExternalMemory(CUexternalMemory *extMem_out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = extMem_out && memHandleDesc ? check(memHandleDesc) : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  CUexternalMemory external = objects_take(&externals);
  if (!external) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *external = (struct CUextMemory_st){.size = memHandleDesc->size, .context = context};
  close(memHandleDesc->handle.fd);
  *extMem_out = external;
  return driver_leave(CUDA_SUCCESS);
}

/* Lock the driver; fail unless this is external memory. */
static CUresult enter_external(CUexternalMemory external, CUcontext *context) {
  CUresult result = driver_enter_context(context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return objects_has(&externals, external) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc) {
  CUcontext context;
  CUresult result = enter_external(extMem, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!devPtr || !bufferDesc || bufferDesc->flags != 0 || bufferDesc->size == 0 ||
      bufferDesc->offset > extMem->size || bufferDesc->size > extMem->size - bufferDesc->offset) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct space_block *block =
      import_take(bufferDesc->size, (struct import){.kind = IMPORT_EXTERNAL, .context = context});
  if (!block) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *devPtr = block->address;
  return driver_leave(CUDA_SUCCESS);
}

CUresult
cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory extMem,
                                        const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *mipmapDesc) {
  CUcontext context;
  CUresult result = enter_external(extMem, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!mipmap || !mipmapDesc || mipmapDesc->offset > extMem->size) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = array_check(&mipmapDesc->arrayDesc, mipmapDesc->numLevels);
  if (result == CUDA_SUCCESS &&
      array_size(&mipmapDesc->arrayDesc, mipmapDesc->numLevels) > extMem->size - mipmapDesc->offset) {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  return driver_leave(result == CUDA_SUCCESS ? mipmap_over_external(mipmap, context, &mipmapDesc->arrayDesc,
                                                                    mipmapDesc->numLevels)
                                             : result);
}

/* Buffers and arrays that were mapped are to be freed by themselves. */
CUresult cuDestroyExternalMemory(CUexternalMemory extMem) {
  CUcontext context;
  CUresult result = enter_external(extMem, &context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  objects_give(&externals, extMem);
  return driver_leave(CUDA_SUCCESS);
}

static void forget_if_of(void *object, void *context) {
  CUexternalMemory external = object;
  if (external->context == context) {
    objects_give(&externals, external);
  }
}

void externals_forget(CUcontext context) {
  objects_each(&externals, forget_if_of, context);
}
