/* SPDX-License-Identifier: Apache-2.0
 *
 * How much device memory is free, and what lies at an address.
 */
#include "graph_memory.h"
#include "late.h"
#include "memory.h"
#include "pool.h"
#include "vmm.h"

/* Either pointer may be NULL: OptiX asks like that. */
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (free) {
    late_settle();
    *free = books_free(&driver.books, context->gpu);
  }
  if (total) {
    *total = driver_capacity(context->gpu);
  }
  return driver_leave(CUDA_SUCCESS);
}

static unsigned clamp(size_t bytes) {
  return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
  size_t free_bytes;
  size_t total_bytes;
  CUresult result = cuMemGetInfo_v2(&free_bytes, &total_bytes);
  if (result == CUDA_SUCCESS && free) {
    *free = clamp(free_bytes);
  }
  if (result == CUDA_SUCCESS && total) {
    *total = clamp(total_bytes);
  }
  return result;
}

bool memory_locate(uintptr_t address, struct memory_range *range) {
  struct space_block *block = space_find(address);
  if (!block) {
    return false;
  }
  if (block->kind == SPACE_CHUNK) {
    struct arena_segment *segment = pool_find(block, address, true);
    if (segment) {
      *range = (struct memory_range){segment->address,           segment->asked, block, &segment->backing,
                                     pool_of(block)->arena.host, segment->id};
    }
    return segment;
  }
  if (block->kind == SPACE_RANGE) {
    struct vmm_mapping *mapping = vmm_mapping_at(block, address);
    if (mapping) {
      *range = (struct memory_range){mapping->address,  mapping->size, block,
                                     &mapping->backing, mapping->host, mapping->memory->id};
    }
    return mapping && mapping->readable;
  }
  *range = (struct memory_range){block->address, block->size, block, &block->backing, block->host, block->id};
  return block->kind != SPACE_GRAPH || graph_memory_is_live(block->address);
}

static CUresult address_range(uintptr_t address, uintptr_t *base, size_t *size) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct memory_range range;
  if (!memory_locate(address, &range)) {
    return driver_leave(CUDA_ERROR_NOT_FOUND);
  }
  *base = range.base;
  *size = range.size;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
  uintptr_t base;
  size_t size;
  CUresult result = address_range(dptr, &base, &size);
  if (result == CUDA_SUCCESS && pbase) {
    *pbase = base;
  }
  if (result == CUDA_SUCCESS && psize) {
    *psize = size;
  }
  return result;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *pbase, unsigned int *psize, CUdeviceptr_v1 dptr) {
  uintptr_t base;
  size_t size;
  CUresult result = address_range(dptr, &base, &size);
  if (result == CUDA_SUCCESS && pbase) {
    *pbase = (CUdeviceptr_v1)base;
  }
  if (result == CUDA_SUCCESS && psize) {
    *psize = clamp(size);
  }
  return result;
}
