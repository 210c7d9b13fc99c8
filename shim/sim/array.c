/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays: made, described, destroyed.
 */
#include "array.h"

static struct objects arrays = {.size = sizeof(struct CUarray_st)};

bool array_is(CUarray array) {
  return objects_has(&arrays, array);
}

CUresult array_begin(struct array_body *body, CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *about,
                     unsigned levels) {
  CUresult result = array_check(about, levels);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct array_body wanted = {
      .about = *about, .levels = levels, .size = array_size(about, levels), .context = context};
  wanted.charged = !(about->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
  if (wanted.charged && !memory_charge(context->gpu, memory_allocation(wanted.size))) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *body = wanted;
  return CUDA_SUCCESS;
}

void array_end(struct array_body *body) {
  array_unmap_all(body);
  if (body->charged) {
    books_change(&driver.books, body->context->gpu, memory_refund(body->size));
  }
}

static CUresult create(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *about) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!handle || !about) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUarray array = objects_take(&arrays);
  result = array ? array_begin(&array->body, context, about, 1) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    *handle = array;
  } else if (array) {
    objects_give(&arrays, array);
  }
  return driver_leave(result);
}

CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray) {
  return create(pHandle, pAllocateArray);
}

CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray) {
  CUDA_ARRAY3D_DESCRIPTOR about = {0};
  if (pAllocateArray) {
    about = (CUDA_ARRAY3D_DESCRIPTOR){.Width = pAllocateArray->Width,
                                      .Height = pAllocateArray->Height,
                                      .Format = pAllocateArray->Format,
                                      .NumChannels = pAllocateArray->NumChannels};
  }
  return create(pHandle, pAllocateArray ? &about : NULL);
}

CUresult cuArray3DCreate(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray) {
  CUDA_ARRAY3D_DESCRIPTOR about = {0};
  if (pAllocateArray) {
    about = (CUDA_ARRAY3D_DESCRIPTOR){.Width = pAllocateArray->Width,
                                      .Height = pAllocateArray->Height,
                                      .Depth = pAllocateArray->Depth,
                                      .Format = pAllocateArray->Format,
                                      .NumChannels = pAllocateArray->NumChannels,
                                      .Flags = pAllocateArray->Flags};
  }
  return create(pHandle, pAllocateArray ? &about : NULL);
}

CUresult cuArrayCreate(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray) {
  CUDA_ARRAY3D_DESCRIPTOR about = {0};
  if (pAllocateArray) {
    about = (CUDA_ARRAY3D_DESCRIPTOR){.Width = pAllocateArray->Width,
                                      .Height = pAllocateArray->Height,
                                      .Format = pAllocateArray->Format,
                                      .NumChannels = pAllocateArray->NumChannels};
  }
  return create(pHandle, pAllocateArray ? &about : NULL);
}

static void destroy(CUarray array) {
  array_end(&array->body);
  objects_give(&arrays, array);
}

CUresult cuArrayDestroy(CUarray hArray) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!array_is(hArray) || hArray->mipmap) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  destroy(hArray);
  return driver_leave(CUDA_SUCCESS);
}

static void destroy_if_of(void *object, void *context) {
  CUarray array = object;
  if (array->body.context == context && !array->mipmap) {
    destroy(array);
  }
}

void arrays_forget(CUcontext context) {
  objects_each(&arrays, destroy_if_of, context);
}

CUarray array_of_level(CUmipmappedArray mipmap, unsigned level) {
  if (!mipmap->level[level]) {
    CUarray array = objects_take(&arrays);
    if (!array) {
      return NULL;
    }
    array->body = (struct array_body){
        .about = array_level(&mipmap->body.about, level), .levels = 1, .context = mipmap->body.context};
    array->mipmap = mipmap;
    mipmap->level[level] = array;
  }
  return mipmap->level[level];
}

void array_forget_level(CUarray array) {
  objects_give(&arrays, array);
}

/* --- descriptions --- */

/* Lock the driver and find the description. */
static CUresult enter_array(CUarray array, const void *output, const CUDA_ARRAY3D_DESCRIPTOR **about) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!array_is(array)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  *about = &array->body.about;
  return output ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
  const CUDA_ARRAY3D_DESCRIPTOR *about;
  CUresult result = enter_array(hArray, pArrayDescriptor, &about);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *pArrayDescriptor = *about;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray) {
  const CUDA_ARRAY3D_DESCRIPTOR *about;
  CUresult result = enter_array(hArray, pArrayDescriptor, &about);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){.Width = about->Width,
                                              .Height = about->Height,
                                              .Format = about->Format,
                                              .NumChannels = about->NumChannels};
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray) {
  const CUDA_ARRAY3D_DESCRIPTOR *about;
  CUresult result = enter_array(hArray, pArrayDescriptor, &about);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *pArrayDescriptor = (CUDA_ARRAY3D_DESCRIPTOR_v1){.Width = (unsigned)about->Width,
                                                   .Height = (unsigned)about->Height,
                                                   .Depth = (unsigned)about->Depth,
                                                   .Format = about->Format,
                                                   .NumChannels = about->NumChannels,
                                                   .Flags = about->Flags};
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *pArrayDescriptor, CUarray hArray) {
  const CUDA_ARRAY3D_DESCRIPTOR *about;
  CUresult result = enter_array(hArray, pArrayDescriptor, &about);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR_v1){.Width = (unsigned)about->Width,
                                                 .Height = (unsigned)about->Height,
                                                 .Format = about->Format,
                                                 .NumChannels = about->NumChannels};
  return driver_leave(CUDA_SUCCESS);
}

/* Only for arrays whose memory is yet to be mapped (cuda.h). */
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *memoryRequirements, CUarray array,
                                      CUdevice device) {
  const CUDA_ARRAY3D_DESCRIPTOR *about;
  CUresult result = enter_array(array, memoryRequirements, &about);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!driver_is_device(device)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  if (!(about->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *memoryRequirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->body.size, .alignment = ARRAY_ALIGN};
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUarray array) {
  const CUDA_ARRAY3D_DESCRIPTOR *about;
  CUresult result = enter_array(array, sparseProperties, &about);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!(about->Flags & CUDA_ARRAY3D_SPARSE)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *sparseProperties = array_sparse(about, 1);
  return driver_leave(CUDA_SUCCESS);
}
