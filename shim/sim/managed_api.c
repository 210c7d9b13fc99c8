/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefetches, and advice (which is kept and has no effect).
 */
#include "managed.h"
#include "stream.h"

/* A device of this process, or (-1) the host. */
static CUresult check_location(const CUmemLocation *location, int *device) {
  switch (location->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    *device = location->id;
    return driver_is_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
    *device = -1;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

static CUresult check_prefetch(CUdeviceptr address, size_t size, const CUmemLocation *location) {
  int device;
  if (size == 0 || !managed_around(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return check_location(location, &device);
}

static void prefetch(CUdeviceptr address, size_t size, const CUmemLocation *location) {
  struct managed *managed = managed_around(address, size);
  int device = -1;
  check_location(location, &device);
  if (device >= 0) {
    managed_touch(managed, address, size, driver.gpu[device]);
  } else {
    managed_leave(managed, address, size, false);
  }
  managed->last = *location;
}

static CUresult prefetch_one(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags,
                             CUstream stream) {
  CUcontext context;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = stream_owner(stream, &context);
  if (result == CUDA_SUCCESS) {
    result = flags ? CUDA_ERROR_INVALID_VALUE : check_prefetch(address, size, &location);
  }
  if (result == CUDA_SUCCESS) {
    prefetch(address, size, &location);
  }
  return driver_leave(result);
}

/* The ABI of CUDA 8 names a device, or CU_DEVICE_CPU. */
static CUmemLocation location_of(CUdevice device) {
  return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
                                                         : CU_MEM_LOCATION_TYPE_DEVICE,
                         .id = device};
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
  return prefetch_one(devPtr, count, location_of(dstDevice), 0, hStream);
}
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
  return prefetch_one(devPtr, count, location_of(dstDevice), 0, hStream);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream) {
  return prefetch_one(devPtr, count, location, flags, hStream);
}
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                    unsigned int flags, CUstream hStream) {
  return prefetch_one(devPtr, count, location, flags, hStream);
}

/* --- batches --- */

struct prefetches {
  const CUdeviceptr *addresses;
  const size_t *sizes;
  size_t count;
  const CUmemLocation *locations;
  const size_t *starts; /* operation at which each location begins to hold */
  size_t places;
};

static bool is_well_formed(const struct prefetches *batch) {
  bool there = batch->addresses && batch->sizes && batch->count > 0 && batch->locations && batch->starts &&
               batch->places > 0 && batch->places <= batch->count && batch->starts[0] == 0;
  for (size_t place = 1; there && place < batch->places; place++) {
    there = batch->starts[place] > batch->starts[place - 1] && batch->starts[place] < batch->count;
  }
  return there;
}

static const CUmemLocation *place_of(const struct prefetches *batch, size_t operation) {
  size_t place = 0;
  while (place + 1 < batch->places && batch->starts[place + 1] <= operation) {
    place++;
  }
  return &batch->locations[place];
}

/* Lock the driver for a batch: the legacy default stream takes none. */
static CUresult enter_batch(CUstream stream, bool per_thread, unsigned long long flags) {
  CUcontext context;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool legacy = stream == CU_STREAM_LEGACY || (!stream && !per_thread);
  result = legacy || flags ? CUDA_ERROR_INVALID_VALUE : stream_owner(stream, &context);
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

static CUresult prefetch_batch(struct prefetches batch, unsigned long long flags, CUstream stream,
                               bool per_thread) {
  CUresult result = enter_batch(stream, per_thread, flags);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!is_well_formed(&batch)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (size_t i = 0; i < batch.count && result == CUDA_SUCCESS; i++) {
    result = check_prefetch(batch.addresses[i], batch.sizes[i], place_of(&batch, i));
  }
  for (size_t i = 0; i < batch.count && result == CUDA_SUCCESS; i++) {
    prefetch(batch.addresses[i], batch.sizes[i], place_of(&batch, i));
  }
  return driver_leave(result);
}

#define PREFETCHES(NAME, PER_THREAD)                                                                         \
  CUresult NAME(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,                \
                size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,                   \
                CUstream hStream) {                                                                          \
    struct prefetches batch = {dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs};         \
    return prefetch_batch(batch, flags, hStream, PER_THREAD);                                                \
  }

/* What is discarded keeps its memory; only its contents may go. */
PREFETCHES(cuMemPrefetchBatchAsync, false)
PREFETCHES(cuMemPrefetchBatchAsync_ptsz, true)
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync, false)
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync_ptsz, true)

static CUresult discard(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
                        unsigned long long flags, CUstream stream, bool per_thread) {
  CUresult result = enter_batch(stream, per_thread, flags);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool valid = addresses && sizes && count > 0;
  for (size_t i = 0; valid && i < count; i++) {
    valid = sizes[i] > 0 && managed_around(addresses[i], sizes[i]);
  }
  return driver_leave(valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, unsigned long long flags,
                                CUstream hStream) {
  return discard(dptrs, sizes, count, flags, hStream, false);
}
CUresult cuMemDiscardBatchAsync_ptsz(CUdeviceptr *dptrs, size_t *sizes, size_t count,
                                     unsigned long long flags, CUstream hStream) {
  return discard(dptrs, sizes, count, flags, hStream, true);
}

/* --- advice --- */

static CUresult advise(struct managed *managed, CUmem_advise advice, const CUmemLocation *location) {
  int device = -1;
  bool located = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                 advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  CUresult result = located ? check_location(location, &device) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) {
    return result;
  }
  uint32_t bit = device >= 0 ? 1U << device : 1U << 31;
  switch (advice) {
  case CU_MEM_ADVISE_SET_READ_MOSTLY:
  case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
    managed->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
    return CUDA_SUCCESS;
  case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    managed->preferred = *location;
    return CUDA_SUCCESS;
  case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
    managed->preferred = (CUmemLocation){0};
    return CUDA_SUCCESS;
  case CU_MEM_ADVISE_SET_ACCESSED_BY:
    managed->accessed_by |= bit;
    return CUDA_SUCCESS;
  case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
    managed->accessed_by &= ~bit;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct managed *managed = count ? managed_around(devPtr, count) : NULL;
  return driver_leave(managed ? advise(managed, advice, &location) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  return cuMemAdvise_v2(devPtr, count, advice, location_of(device));
}

/* --- what was advised --- */

static int device_of(const CUmemLocation *location) {
  return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id
         : location->type                              ? CU_DEVICE_CPU
                                                       : CU_DEVICE_INVALID;
}

/* The devices that access it, padded with CU_DEVICE_INVALID. */
static void list_accessed_by(const struct managed *managed, int *list, size_t room) {
  size_t count = 0;
  for (int bit = 0; bit < 32; bit++) {
    if ((managed->accessed_by >> bit & 1) && count < room) {
      list[count++] = bit == 31 ? CU_DEVICE_CPU : bit;
    }
  }
  while (count < room) {
    list[count++] = CU_DEVICE_INVALID;
  }
}

static CUresult range_attribute(const struct managed *managed, CUmem_range_attribute attribute, void *data,
                                size_t size) {
  int *value = data;
  if (!data || size < sizeof *value || size % sizeof *value ||
      (size != sizeof *value && attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (attribute) {
  case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
    *value = managed->read_mostly;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    *value = device_of(&managed->preferred);
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    *value = device_of(&managed->last);
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    *value = (int)managed->preferred.type;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
    *value = managed->preferred.id;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
    *value = (int)managed->last.type;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
    *value = managed->last.id;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
    list_accessed_by(managed, value, size / sizeof *value);
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct managed *managed = count ? managed_around(devPtr, count) : NULL;
  return driver_leave(managed ? range_attribute(managed, attribute, data, dataSize)
                              : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  if (!data || !dataSizes || !attributes || numAttributes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < numAttributes && result == CUDA_SUCCESS; i++) {
    result = cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
  }
  return result;
}
