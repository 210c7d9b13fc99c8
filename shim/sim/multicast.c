/* SPDX-License-Identifier: Apache-2.0
 *
 * Multicast objects: many GPUs' memory at one place. They have no memory of
 * their own; what is bound to one stays while it is bound.
 */
#include <stdlib.h>

#include "profiles.h"
#include "vmm.h"

/* Memory of one device at one place of the object. */
struct vmm_binding {
  struct vmm_binding *next;
  struct vmm_memory *memory;
  CUdevice device;
  size_t offset;
  size_t size;
};

/* NVIDIA's documentation: multicast needs NVSwitch and compute capability 9.0. */
static bool has_multicast(CUdevice device) {
  return driver_profile(driver.gpu[device])->major >= 9;
}

static struct vmm_memory *object_of(CUmemGenericAllocationHandle handle) {
  struct vmm_memory *object = vmm_find(handle);
  return object && object->kind == VMM_MULTICAST ? object : NULL;
}

static CUresult check(const CUmulticastObjectProp *prop) {
  if (!prop || prop->flags != 0 || prop->numDevices == 0 || prop->size == 0 || prop->size % VMM_GRAIN != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  unsigned able = 0;
  for (unsigned device = 0; device < driver.devices; device++) {
    able += has_multicast((CUdevice)device);
  }
  if (able == 0 || prop->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_NOT_SUPPORTED; /* objects of several processes are not simulated */
  }
  return prop->numDevices <= driver.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = mcHandle ? check(prop) : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  struct vmm_memory *object = vmm_new();
  if (!object) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  object->kind = VMM_MULTICAST;
  object->size = prop->size;
  object->multicast.devices = prop->numDevices;
  *mcHandle = vmm_handle(object);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct vmm_memory *object = object_of(mcHandle);
  if (!object) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!driver_is_device(dev)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  if (!has_multicast(dev)) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  uint32_t bit = 1U << dev;
  bool full = (unsigned)__builtin_popcount(object->multicast.added) >= object->multicast.devices;
  if (full || (object->multicast.added & bit)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  object->multicast.added |= bit;
  return driver_leave(CUDA_SUCCESS);
}

static bool is_free(const struct vmm_memory *object, CUdevice device, size_t offset, size_t size) {
  for (const struct vmm_binding *b = object->multicast.bindings; b; b = b->next) {
    if (b->device == device && offset < b->offset + b->size && b->offset < offset + size) {
      return false;
    }
  }
  return true;
}

/* All devices must have been added before anything is bound (cuda.h). */
static CUresult bind(struct vmm_memory *object, CUdevice device, size_t offset, struct vmm_memory *memory,
                     size_t memory_offset, size_t size) {
  if (!object || !memory || memory->kind != VMM_DEVICE || size == 0 || size % VMM_GRAIN ||
      offset % VMM_GRAIN || memory_offset % VMM_GRAIN || offset > object->size ||
      size > object->size - offset || memory_offset > memory->size || size > memory->size - memory_offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!driver_is_device(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  bool complete = (unsigned)__builtin_popcount(object->multicast.added) == object->multicast.devices;
  if (driver.gpu[device] != memory->gpu || !(object->multicast.added >> device & 1) || !complete ||
      !is_free(object, device, offset, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct vmm_binding *binding = malloc(sizeof *binding);
  if (!binding) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *binding = (struct vmm_binding){
      .next = object->multicast.bindings, .memory = memory, .device = device, .offset = offset, .size = size};
  object->multicast.bindings = binding;
  memory->uses++;
  return CUDA_SUCCESS;
}

static void unbind(struct vmm_binding **link) {
  struct vmm_binding *binding = *link;
  struct vmm_memory *memory = binding->memory;
  *link = binding->next;
  free(binding);
  memory->uses--;
  vmm_settle(memory);
}

void multicast_clear(struct vmm_memory *object) {
  while (object->multicast.bindings) {
    unbind(&object->multicast.bindings);
  }
}

/* Ordinal of the device whose memory it is. */
static CUdevice device_of(const struct vmm_memory *memory) {
  return memory && memory->kind == VMM_DEVICE ? memory->prop.location.id : CU_DEVICE_INVALID;
}

static CUresult bind_memory(CUmemGenericAllocationHandle handle, const CUdevice *device, size_t offset,
                            CUmemGenericAllocationHandle memory_handle, size_t memory_offset, size_t size,
                            unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (flags != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct vmm_memory *memory = vmm_find(memory_handle);
  return driver_leave(
      bind(object_of(handle), device ? *device : device_of(memory), offset, memory, memory_offset, size));
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) {
  return bind_memory(mcHandle, NULL, mcOffset, memHandle, memOffset, size, flags);
}
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) {
  return bind_memory(mcHandle, &dev, mcOffset, memHandle, memOffset, size, flags);
}

static CUresult bind_address(CUmemGenericAllocationHandle handle, const CUdevice *device, size_t offset,
                             CUdeviceptr address, size_t size, unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct space_block *block = space_find(address);
  const struct vmm_mapping *mapping =
      block && block->kind == SPACE_RANGE ? vmm_mapping_at(block, address) : NULL;
  if (!mapping || flags != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct vmm_memory *memory = mapping->memory;
  return driver_leave(bind(object_of(handle), device ? *device : device_of(memory), offset, memory,
                           mapping->offset + (address - mapping->address), size));
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr,
                             size_t size, unsigned long long flags) {
  return bind_address(mcHandle, NULL, mcOffset, memptr, size, flags);
}
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                CUdeviceptr memptr, size_t size, unsigned long long flags) {
  return bind_address(mcHandle, &dev, mcOffset, memptr, size, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                           size_t size) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct vmm_memory *object = object_of(mcHandle);
  if (!object) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!driver_is_device(dev)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  struct vmm_binding **link = &object->multicast.bindings;
  while (*link && ((*link)->device != dev || (*link)->offset != mcOffset || (*link)->size != size)) {
    link = &(*link)->next;
  }
  if (!*link) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  unbind(link);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!granularity || !prop || prop->numDevices == 0 ||
      (option != CU_MULTICAST_GRANULARITY_MINIMUM && option != CU_MULTICAST_GRANULARITY_RECOMMENDED)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *granularity = VMM_GRAIN;
  return driver_leave(CUDA_SUCCESS);
}
