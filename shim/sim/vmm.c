/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory without addresses: cuMemCreate to cuMemRelease.
 */
#include "vmm.h"

#include <stdlib.h>

#define PER_BLOCK 512
#define BLOCKS    (1U << 15)

static struct vmm_memory *blocks[BLOCKS];
static uint32_t made;
static struct vmm_memory *free_memories;

static struct vmm_memory *record(uint32_t index) {
  return &blocks[index / PER_BLOCK][index % PER_BLOCK];
}

static bool make_block(void) {
  struct vmm_memory *block = made / PER_BLOCK < BLOCKS ? calloc(PER_BLOCK, sizeof *block) : NULL;
  if (!block) {
    return false;
  }
  blocks[made / PER_BLOCK] = block;
  for (uint32_t i = PER_BLOCK; i-- > 0;) {
    block[i].index = made + i;
    block[i].next_free = free_memories;
    free_memories = &block[i];
  }
  made += PER_BLOCK;
  return true;
}

struct vmm_memory *vmm_new(void) {
  if (!free_memories && !make_block()) {
    return NULL;
  }
  struct vmm_memory *memory = free_memories;
  free_memories = memory->next_free;
  *memory = (struct vmm_memory){
      .index = memory->index, .generation = memory->generation + 1, .live = true, .references = 1};
  memory->id = space_new_id();
  return memory;
}

static void forget(struct vmm_memory *memory) {
  memory->live = false;
  memory->next_free = free_memories;
  free_memories = memory;
}

/* 47 bits, never 0, never an address: bit 46 is set. */
CUmemGenericAllocationHandle vmm_handle(const struct vmm_memory *memory) {
  return 1ULL << 46 | (uint64_t)(memory->generation & 0x3fffff) << 24 | memory->index;
}

struct vmm_memory *vmm_find(CUmemGenericAllocationHandle handle) {
  uint32_t index = handle & 0xffffff;
  struct vmm_memory *memory = index < made ? record(index) : NULL;
  bool valid = memory && memory->live && memory->references > 0 && vmm_handle(memory) == handle;
  return valid ? memory : NULL;
}

static void end(struct vmm_memory *memory) {
  if (memory->shared.slot) {
    shared_drop(&driver.books, &memory->shared);
  } else if (memory->kind == VMM_DEVICE) {
    books_change(&driver.books, memory->gpu, memory_pages(-(int64_t)memory->size));
  }
  forget(memory);
}

void vmm_settle(struct vmm_memory *memory) {
  if (memory->references > 0 || memory->uses > 0) {
    return;
  }
  if (memory->kind == VMM_MULTICAST) {
    multicast_clear(memory);
  }
  end(memory);
}

static CUresult check_location(CUmemAllocationProp *prop) {
  CUmemLocation *location = &prop->location;
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
      !location->localized.localityDomainId) {
    int device = location->localized.deviceId; /* a device with one locality domain is that domain */
    *location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  }
  switch (location->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    return driver_is_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
    return prop->requestedHandleTypes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    return location->id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult vmm_check(CUmemAllocationProp *prop) {
  const unsigned usages = CU_MEM_CREATE_USAGE_TILE_POOL | CU_MEM_CREATE_USAGE_HW_DECOMPRESS |
                          CU_MEM_CREATE_USAGE_GPU_DIRECT_RDMA_OVER_PCIE;
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->win32HandleMetaData ||
      prop->allocFlags.compressionType > CU_MEM_ALLOCATION_COMP_GENERIC ||
      (prop->allocFlags.usage & ~usages) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUresult result = check_location(prop);
  if (result == CUDA_SUCCESS && (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows' handles; fabric handles need a fabric */
  }
  return result;
}

static bool charge(struct vmm_memory *memory) {
  struct sim_shared about = {
      .kind = SIM_SHARED_MEMORY, .gpu = memory->gpu, .flags = memory->kind, .size = memory->size};
  if (!memory->prop.requestedHandleTypes) {
    return memory->kind == VMM_HOST || memory_charge(memory->gpu, memory_pages((int64_t)memory->size));
  }
  if (!shared_make(&driver.books, about, &memory->shared)) {
    return false;
  }
  if (memory->kind == VMM_HOST || memory_charge_shared(&memory->shared, memory->size)) {
    return true;
  }
  shared_drop(&driver.books, &memory->shared);
  return false;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!handle || !prop || flags != 0 || size == 0 || size % VMM_GRAIN != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUmemAllocationProp wanted = *prop;
  result = vmm_check(&wanted);
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  struct vmm_memory *memory = size < 1ULL << 42 ? vmm_new() : NULL;
  if (!memory) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  bool device = wanted.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  memory->kind = device ? VMM_DEVICE : VMM_HOST;
  memory->gpu = device ? driver.gpu[wanted.location.id] : 0;
  memory->size = size;
  memory->prop = wanted;
  if (!charge(memory)) {
    forget(memory);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *handle = vmm_handle(memory);
  return driver_leave(CUDA_SUCCESS);
}

/* The handle may go while mappings stay. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct vmm_memory *memory = vmm_find(handle);
  if (!memory) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  memory->references--;
  vmm_settle(memory);
  return driver_leave(CUDA_SUCCESS);
}

/* Also brings a handle back that has been released while its memory was mapped. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct space_block *block = space_find((uintptr_t)addr);
  const struct vmm_mapping *mapping =
      block && block->kind == SPACE_RANGE ? vmm_mapping_at(block, (uintptr_t)addr) : NULL;
  if (!handle || !mapping) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  mapping->memory->references++;
  *handle = vmm_handle(mapping->memory);
  return driver_leave(CUDA_SUCCESS);
}
