/* SPDX-License-Identifier: Apache-2.0
 *
 * Reserved addresses, what is mapped there, and who may use it.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

#include "vmm.h"

#define HOST_PAGE 4096ULL
#define SLAB      64

/* Owner of a block of kind SPACE_RANGE. The block is larger where an alignment was asked for. */
struct vmm_range {
  uintptr_t start;
  size_t size;
  size_t mapped;           /* pages */
  struct vmm_mapping **at; /* by page */
};

static struct vmm_mapping *free_mappings;

static size_t pages_of(size_t size) {
  return (size + SIM_PAGE - 1) / SIM_PAGE;
}

static struct vmm_range *range_of(uintptr_t address, struct space_block **found) {
  struct space_block *block = space_find(address);
  struct vmm_range *range = block && block->kind == SPACE_RANGE ? block->owner : NULL;
  if (!range || address < range->start || address - range->start >= range->size) {
    return NULL;
  }
  *found = block;
  return range;
}

struct vmm_mapping *vmm_mapping_at(const struct space_block *block, uintptr_t address) {
  const struct vmm_range *range = block->owner;
  bool inside = address >= range->start && address - range->start < range->size;
  return inside ? range->at[(address - range->start) / SIM_PAGE] : NULL;
}

void vmm_range_of(const struct space_block *block, uintptr_t *start, size_t *size) {
  const struct vmm_range *range = block->owner;
  *start = range->start;
  *size = range->size;
}

static CUresult reserve(CUdeviceptr *ptr, size_t size, size_t alignment) {
  struct vmm_range *range = malloc(sizeof *range);
  size_t extra = (alignment > SIM_PAGE ? alignment : 0) + SIM_PAGE; /* ranges never touch one another */
  void *index = range && size <= 1ULL << 41 && alignment <= 1ULL << 40
                    ? mmap(NULL, pages_of(size) * sizeof *range->at, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                    : MAP_FAILED;
  struct space_block *block =
      index != MAP_FAILED ? space_take(memory_round(size, SIM_PAGE) + extra, false) : NULL;
  if (!block) {
    if (index != MAP_FAILED) {
      munmap(index, pages_of(size) * sizeof *range->at);
    }
    free(range);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *range =
      (struct vmm_range){.start = memory_round(block->address, alignment > SIM_PAGE ? alignment : SIM_PAGE),
                         .size = size,
                         .at = index};
  block->kind = SPACE_RANGE;
  block->owner = range;
  *ptr = range->start;
  return CUDA_SUCCESS;
}

/* The address is a hint only, which we do not take. */
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool power_of_two = (alignment & (alignment - 1)) == 0;
  if (!ptr || size == 0 || size % HOST_PAGE != 0 || addr % HOST_PAGE != 0 || !power_of_two || flags != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(reserve(ptr, size, alignment));
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct space_block *block;
  struct vmm_range *range = range_of(ptr, &block);
  if (!range || range->start != ptr || range->size != size || range->mapped > 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  munmap(range->at, pages_of(range->size) * sizeof *range->at);
  free(range);
  space_give(block);
  return driver_leave(CUDA_SUCCESS);
}

static bool is_unmapped(const struct vmm_range *range, size_t first, size_t count) {
  for (size_t page = first; page < first + count; page++) {
    if (range->at[page]) {
      return false;
    }
  }
  return true;
}

static struct vmm_mapping *new_mapping(void) {
  if (!free_mappings) {
    struct vmm_mapping *fresh = calloc(SLAB, sizeof *fresh);
    for (int i = 0; fresh && i < SLAB; i++) {
      fresh[i].next_free = free_mappings;
      free_mappings = &fresh[i];
    }
  }
  struct vmm_mapping *mapping = free_mappings;
  free_mappings = mapping ? mapping->next_free : NULL;
  return mapping;
}

/* Aligned, inside of range and memory, and nothing is there yet. */
static CUresult check_map(const struct vmm_range *range, uintptr_t ptr, size_t size, size_t offset,
                          const struct vmm_memory *memory) {
  if (!range || !memory || size == 0 || ptr % VMM_GRAIN || size % VMM_GRAIN || offset % VMM_GRAIN ||
      size > range->size - (ptr - range->start) || offset > memory->size || size > memory->size - offset ||
      (offset > 0 && memory->kind != VMM_MULTICAST) ||
      !is_unmapped(range, (ptr - range->start) / SIM_PAGE, size / SIM_PAGE)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct space_block *block;
  struct vmm_range *range = range_of(ptr, &block);
  struct vmm_memory *memory = vmm_find(handle);
  result = flags ? CUDA_ERROR_INVALID_VALUE : check_map(range, ptr, size, offset, memory);
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  struct vmm_mapping *mapping = new_mapping();
  if (!mapping) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *mapping = (struct vmm_mapping){.address = ptr, .size = size, .offset = offset, .memory = memory};
  for (size_t page = 0; page < size / SIM_PAGE; page++) {
    range->at[(ptr - range->start) / SIM_PAGE + page] = mapping;
  }
  range->mapped += size / SIM_PAGE;
  memory->uses++;
  return driver_leave(CUDA_SUCCESS);
}

/* Whether whole mappings fill the stretch without a gap. */
static bool is_filled(const struct vmm_range *range, uintptr_t ptr, size_t size) {
  if (!range || size == 0 || size > range->size - (ptr - range->start)) {
    return false;
  }
  for (uintptr_t at = ptr; at < ptr + size;) {
    const struct vmm_mapping *mapping = range->at[(at - range->start) / SIM_PAGE];
    if (!mapping || mapping->address != at || mapping->size > ptr + size - at) {
      return false;
    }
    at += mapping->size;
  }
  return true;
}

static void unmap(struct vmm_range *range, struct vmm_mapping *mapping) {
  struct vmm_memory *memory = mapping->memory;
  for (size_t page = 0; page < mapping->size / SIM_PAGE; page++) {
    range->at[(mapping->address - range->start) / SIM_PAGE + page] = NULL;
  }
  range->mapped -= mapping->size / SIM_PAGE;
  space_drop_part(mapping->address, mapping->size, mapping->host, &mapping->backing);
  mapping->next_free = free_mappings;
  free_mappings = mapping;
  memory->uses--;
  vmm_settle(memory);
}

/* One or more whole mappings; never a part of one. */
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct space_block *block;
  struct vmm_range *range = range_of(ptr, &block);
  if (!is_filled(range, ptr, size)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (uintptr_t at = ptr; at < ptr + size;) {
    struct vmm_mapping *mapping = range->at[(at - range->start) / SIM_PAGE];
    at += mapping->size;
    unmap(range, mapping);
  }
  return driver_leave(CUDA_SUCCESS);
}

static CUresult bit_of(const CUmemLocation *location, uint32_t *bit) {
  switch (location->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    *bit = 1U << (location->id & 31);
    return driver_is_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    *bit = VMM_HOST_BIT;
    return CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

/* There are no peers: device memory is for its own device, host memory for all. */
static CUresult check_access(const struct vmm_mapping *mapping, const CUmemAccessDesc *wanted) {
  uint32_t bit;
  CUresult result = bit_of(&wanted->location, &bit);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mapping->memory->kind == VMM_DEVICE) {
    if (bit == VMM_HOST_BIT) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    bool own = driver.gpu[wanted->location.id] == mapping->memory->gpu;
    return own ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  }
  return CUDA_SUCCESS;
}

static void allow(struct vmm_mapping *mapping, const CUmemAccessDesc *wanted) {
  uint32_t bit = 0;
  bit_of(&wanted->location, &bit);
  bool read = wanted->flags & CU_MEM_ACCESS_FLAGS_PROT_READ;
  bool write = wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  mapping->readable = read ? mapping->readable | bit : mapping->readable & ~bit;
  mapping->writable = write ? mapping->writable | bit : mapping->writable & ~bit;
  if (mapping->memory->kind == VMM_HOST && mapping->backing == SPACE_UNTOUCHED) {
    space_back_part(mapping->address, mapping->size, true, &mapping->backing);
    mapping->host = mapping->backing == SPACE_BACKED;
  }
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct space_block *block;
  struct vmm_range *range = range_of(ptr, &block);
  if (!desc || count == 0 || !is_filled(range, ptr, size)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct vmm_mapping *mapping;
  for (uintptr_t at = ptr; at < ptr + size; at += mapping->size) {
    mapping = range->at[(at - range->start) / SIM_PAGE];
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
      result = check_access(mapping, &desc[i]);
    }
  }
  for (uintptr_t at = ptr; at < ptr + size && result == CUDA_SUCCESS; at += mapping->size) {
    mapping = range->at[(at - range->start) / SIM_PAGE];
    for (size_t i = 0; i < count; i++) {
      allow(mapping, &desc[i]);
    }
  }
  return driver_leave(result);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct space_block *block;
  uint32_t bit;
  const struct vmm_range *range = range_of(ptr, &block);
  const struct vmm_mapping *mapping = range ? vmm_mapping_at(block, ptr) : NULL;
  if (!flags || !location || !mapping) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = bit_of(location, &bit);
  if (result == CUDA_SUCCESS) {
    *flags = mapping->writable & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : mapping->readable & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                       : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  }
  return driver_leave(result);
}
