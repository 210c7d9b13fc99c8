/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays and mipmapped arrays. How the driver lays them out is its own business: it says how much
 * an array takes of one that is made without memory (DEFERRED_MAPPING), and so a twin is made,
 * asked, and destroyed.
 *
 * Sparse and deferred arrays take nothing; memory is mapped into them later.
 */
#include "books.h"
#include "capture.h"
#include "hooks.h"
#include "state.h"

#define PAGE  (2ULL << 20)
#define GRAIN 512ULL

/* An array to be made; `levels` 0: not mipmapped. */
struct wanted {
  CUDA_ARRAY3D_DESCRIPTOR shape;
  unsigned levels;
};

static uint64_t rounded(uint64_t bytes) {
  uint64_t step = bytes < PAGE ? GRAIN : PAGE;
  return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) & ~(step - 1);
}

static bool takes_nothing(const struct wanted *wanted) {
  return wanted->shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
}

/* --- what the driver says --- */

static CUresult ask_array(const CUDA_ARRAY3D_DESCRIPTOR *twin, CUdevice device,
                          CUDA_ARRAY_MEMORY_REQUIREMENTS *needs) {
  CUarray array;
  if (!AQ_REAL(cuArray3DCreate_v2) || !AQ_REAL(cuArrayGetMemoryRequirements) || !AQ_REAL(cuArrayDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuArray3DCreate_v2)(&array, twin);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuArrayGetMemoryRequirements)(needs, array, device);
  AQ_REAL(cuArrayDestroy)(array);
  return result;
}

static CUresult ask_mipmap(const CUDA_ARRAY3D_DESCRIPTOR *twin, unsigned levels, CUdevice device,
                           CUDA_ARRAY_MEMORY_REQUIREMENTS *needs) {
  CUmipmappedArray mipmap;
  if (!AQ_REAL(cuMipmappedArrayCreate) || !AQ_REAL(cuMipmappedArrayGetMemoryRequirements) ||
      !AQ_REAL(cuMipmappedArrayDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuMipmappedArrayCreate)(&mipmap, twin, levels);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuMipmappedArrayGetMemoryRequirements)(needs, mipmap, device);
  AQ_REAL(cuMipmappedArrayDestroy)(mipmap);
  return result;
}

static bool ask_driver(const struct wanted *wanted, uint64_t *bytes) {
  CUDA_ARRAY3D_DESCRIPTOR twin = wanted->shape;
  CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
  CUdevice device;
  twin.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
  struct aq_own_calls calls = aq_own_calls_begin();
  CUresult result = AQ_REAL(cuCtxGetDevice) ? AQ_REAL(cuCtxGetDevice)(&device) : CUDA_ERROR_NOT_SUPPORTED;
  if (result == CUDA_SUCCESS && wanted->levels)
    result = ask_mipmap(&twin, wanted->levels, device, &needs);
  else if (result == CUDA_SUCCESS)
    result = ask_array(&twin, device, &needs);
  aq_own_calls_end(&calls);
  *bytes = rounded(needs.size);
  return result == CUDA_SUCCESS;
}

/* --- what can be computed, should the driver not say --- */

static uint64_t channel_bytes(CUarray_format format) {
  switch (format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return 1;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2;
  default:
    return 4; /* at most, of all there are */
  }
}

static uint64_t product(uint64_t a, uint64_t b) {
  uint64_t result;
  return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

static uint64_t sum(uint64_t a, uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t extent(size_t size, unsigned level) {
  return level < 64 && size >> level > 1 ? size >> level : 1;
}

static uint64_t computed(const struct wanted *wanted) {
  const CUDA_ARRAY3D_DESCRIPTOR *shape = &wanted->shape;
  bool layers = shape->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP); /* each has all levels */
  uint64_t bytes = 0;
  for (unsigned level = 0; level == 0 || (level < wanted->levels && level < 64); level++) {
    uint64_t cells = product(extent(shape->Width, level), extent(shape->Height, level));
    cells = product(cells, layers ? extent(shape->Depth, 0) : extent(shape->Depth, level));
    bytes = sum(bytes, product(cells, product(shape->NumChannels, channel_bytes(shape->Format))));
  }
  return rounded(bytes);
}

/* --- making and destroying --- */

/* Before the driver is asked. `charge->share` NULL: it takes nothing, or the driver has an error of
 * its own to give. */
static CUresult begin(const struct wanted *wanted, struct aq_here *here, struct aq_charge *charge) {
  uint64_t bytes;
  charge->share = NULL;
  CUresult result = aq_here(here);
  if (result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_INITIALIZED)
    return result;
  if (result != CUDA_SUCCESS || takes_nothing(wanted))
    return CUDA_SUCCESS;
  if (!ask_driver(wanted, &bytes))
    bytes = computed(wanted);
  return aq_reserve(here->share, bytes, charge) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void unmake(enum aq_thing thing, void *made) {
  if (thing == AQ_ARRAY && AQ_REAL(cuArrayDestroy))
    AQ_REAL(cuArrayDestroy)(made);
  else if (thing == AQ_MIPMAP && AQ_REAL(cuMipmappedArrayDestroy))
    AQ_REAL(cuMipmappedArrayDestroy)(made);
}

/* After the driver's answer: what was made is in the books now, or gone again. */
static CUresult settle(CUresult result, const struct aq_here *here, const struct aq_charge *charge,
                       enum aq_thing thing, void *made) {
  struct aq_record record = {.thing = thing, .key = (uintptr_t)made, .context = here->context};
  if (result == CUDA_SUCCESS && charge->share && !aq_commit(charge, &record)) {
    unmake(thing, made);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (result != CUDA_SUCCESS && charge->share)
    aq_cancel(charge);
  return result;
}

static CUresult settle_array(CUresult result, const struct aq_here *here, const struct aq_charge *charge,
                             CUarray made, CUarray *out) {
  result = settle(result, here, charge, AQ_ARRAY, made);
  if (result == CUDA_SUCCESS)
    *out = made;
  return result;
}

static bool passes(const void *out, const void *descriptor) {
  return aq_depth > 0 || !out || !descriptor;
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
  struct aq_here here;
  struct aq_charge charge;
  CUarray made = NULL;
  if (!AQ_REAL(cuArrayCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (passes(array, descriptor))
    return AQ_REAL(cuArrayCreate)(array, descriptor);
  struct wanted wanted = {.shape = {.Width = descriptor->Width,
                                    .Height = descriptor->Height,
                                    .Format = descriptor->Format,
                                    .NumChannels = descriptor->NumChannels}};
  CUresult result = begin(&wanted, &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuArrayCreate)(&made, descriptor);
  return settle_array(result, &here, &charge, made, array);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
  struct aq_here here;
  struct aq_charge charge;
  CUarray made = NULL;
  if (!AQ_REAL(cuArrayCreate_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (passes(array, descriptor))
    return AQ_REAL(cuArrayCreate_v2)(array, descriptor);
  struct wanted wanted = {.shape = {.Width = descriptor->Width,
                                    .Height = descriptor->Height,
                                    .Format = descriptor->Format,
                                    .NumChannels = descriptor->NumChannels}};
  CUresult result = begin(&wanted, &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuArrayCreate_v2)(&made, descriptor);
  return settle_array(result, &here, &charge, made, array);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
  struct aq_here here;
  struct aq_charge charge;
  CUarray made = NULL;
  if (!AQ_REAL(cuArray3DCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (passes(array, descriptor))
    return AQ_REAL(cuArray3DCreate)(array, descriptor);
  struct wanted wanted = {.shape = {descriptor->Width, descriptor->Height, descriptor->Depth,
                                    descriptor->Format, descriptor->NumChannels, descriptor->Flags}};
  CUresult result = begin(&wanted, &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuArray3DCreate)(&made, descriptor);
  return settle_array(result, &here, &charge, made, array);
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
  struct aq_here here;
  struct aq_charge charge;
  CUarray made = NULL;
  if (!AQ_REAL(cuArray3DCreate_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (passes(array, descriptor))
    return AQ_REAL(cuArray3DCreate_v2)(array, descriptor);
  struct wanted wanted = {.shape = *descriptor};
  CUresult result = begin(&wanted, &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuArray3DCreate_v2)(&made, descriptor);
  return settle_array(result, &here, &charge, made, array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                unsigned int levels) {
  struct aq_here here;
  struct aq_charge charge;
  CUmipmappedArray made = NULL;
  if (!AQ_REAL(cuMipmappedArrayCreate))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (passes(mipmap, descriptor) || levels == 0)
    return AQ_REAL(cuMipmappedArrayCreate)(mipmap, descriptor, levels);
  struct wanted wanted = {.shape = *descriptor, .levels = levels};
  CUresult result = begin(&wanted, &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuMipmappedArrayCreate)(&made, descriptor, levels);
  result = settle(result, &here, &charge, AQ_MIPMAP, made);
  if (result == CUDA_SUCCESS)
    *mipmap = made;
  return result;
}

static bool taken_out(enum aq_thing thing, const void *handle, struct aq_freed *freed) {
  return aq_depth == 0 && aq_is_ready() && aq_free_begin(thing, (uintptr_t)handle, freed);
}

CUresult cuArrayDestroy(CUarray array) {
  struct aq_freed freed;
  if (!AQ_REAL(cuArrayDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!taken_out(AQ_ARRAY, array, &freed))
    return AQ_REAL(cuArrayDestroy)(array);
  CUresult result = AQ_REAL(cuArrayDestroy)(array);
  aq_free_end(&freed, result == CUDA_SUCCESS);
  return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
  struct aq_freed freed;
  if (!AQ_REAL(cuMipmappedArrayDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!taken_out(AQ_MIPMAP, mipmap, &freed))
    return AQ_REAL(cuMipmappedArrayDestroy)(mipmap);
  CUresult result = AQ_REAL(cuMipmappedArrayDestroy)(mipmap);
  aq_free_end(&freed, result == CUDA_SUCCESS);
  return result;
}
