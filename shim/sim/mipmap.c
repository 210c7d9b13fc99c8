/* SPDX-License-Identifier: Apache-2.0
 *
 * Mipmapped arrays: one allocation for all levels.
 */
#include "array.h"

static struct objects mipmaps = {.size = sizeof(struct CUmipmappedArray_st)};

bool mipmap_is(CUmipmappedArray mipmap) {
  return objects_has(&mipmaps, mipmap);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                unsigned int numMipmapLevels) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pHandle || !pMipmappedArrayDesc) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUmipmappedArray mipmap = objects_take(&mipmaps);
  result = mipmap ? array_begin(&mipmap->body, context, pMipmappedArrayDesc, numMipmapLevels)
                  : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    *pHandle = mipmap;
  } else if (mipmap) {
    objects_give(&mipmaps, mipmap);
  }
  return driver_leave(result);
}

CUresult mipmap_over_external(CUmipmappedArray *made, CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *about,
                              unsigned levels) {
  CUmipmappedArray mipmap = objects_take(&mipmaps);
  if (!mipmap) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  mipmap->body = (struct array_body){.about = *about, .levels = levels, .context = context};
  *made = mipmap;
  return CUDA_SUCCESS;
}

static void destroy(CUmipmappedArray mipmap) {
  for (unsigned level = 0; level < mipmap->body.levels; level++) {
    if (mipmap->level[level]) {
      array_forget_level(mipmap->level[level]);
    }
  }
  array_end(&mipmap->body);
  objects_give(&mipmaps, mipmap);
}

static void destroy_if_of(void *object, void *context) {
  CUmipmappedArray mipmap = object;
  if (mipmap->body.context == context) {
    destroy(mipmap);
  }
}

void mipmaps_forget(CUcontext context) {
  objects_each(&mipmaps, destroy_if_of, context);
}

/* Lock the driver; fail unless this is a mipmapped array. */
static CUresult enter_mipmap(CUmipmappedArray mipmap) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return mipmap_is(mipmap) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
  CUresult result = enter_mipmap(hMipmappedArray);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  destroy(hMipmappedArray);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                  unsigned int level) {
  CUresult result = enter_mipmap(hMipmappedArray);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pLevelArray || level >= hMipmappedArray->body.levels) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUarray array = array_of_level(hMipmappedArray, level);
  if (!array) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *pLevelArray = array;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements,
                                               CUmipmappedArray mipmap, CUdevice device) {
  CUresult result = enter_mipmap(mipmap);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!driver_is_device(device)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  if (!memoryRequirements || !(mipmap->body.about.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *memoryRequirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = mipmap->body.size, .alignment = ARRAY_ALIGN};
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties,
                                             CUmipmappedArray mipmap) {
  CUresult result = enter_mipmap(mipmap);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!sparseProperties || !(mipmap->body.about.Flags & CUDA_ARRAY3D_SPARSE)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *sparseProperties = array_sparse(&mipmap->body.about, mipmap->body.levels);
  return driver_leave(CUDA_SUCCESS);
}
