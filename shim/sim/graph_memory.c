/* SPDX-License-Identifier: Apache-2.0 */
#include "graph_memory.h"

#include <stdlib.h>

#include "memory.h"

#define GRAIN 512ULL

/* Owner of a block of kind SPACE_GRAPH. */
struct graph_allocation {
  struct graph_allocation *previous, *next; /* of all on this process's GPUs */
  struct space_block *block;
  uint32_t gpu;
  bool resident; /* has memory */
  bool live;     /* allocated by a launch and not freed */
  bool removed;  /* its node is gone */
  bool wanted;   /* by the upload under way */
  bool fresh;    /* made resident by it */
};

static struct graph_allocation *allocations;

/* What graphs have of a GPU. */
static struct {
  uint64_t used, used_high;         /* bytes of resident allocations */
  uint64_t reserved, reserved_high; /* whole pages, charged */
} pools[SIM_GPUS];

static uint64_t size_of(const struct graph_allocation *allocation) {
  return memory_round(allocation->block->size, GRAIN);
}

static struct graph_allocation *find(CUdeviceptr address) {
  struct space_block *block = space_find(address);
  return block && block->kind == SPACE_GRAPH && block->address == address ? block->owner : NULL;
}

CUresult graph_memory_add(const CUmemPoolProps *props, size_t size, CUdeviceptr *address) {
  if (size == 0 || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !driver_is_device(props->location.id)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_NOT_SUPPORTED; /* cuda.h: graph memory cannot be shared */
  }
  struct graph_allocation *allocation = malloc(sizeof *allocation);
  struct space_block *block = allocation ? space_take(size, false) : NULL;
  if (!block) {
    free(allocation);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *allocation =
      (struct graph_allocation){.next = allocations, .block = block, .gpu = driver.gpu[props->location.id]};
  if (allocations) {
    allocations->previous = allocation;
  }
  allocations = allocation;
  block->kind = SPACE_GRAPH;
  block->owner = allocation;
  *address = block->address;
  return CUDA_SUCCESS;
}

static void leave(struct graph_allocation *allocation) {
  pools[allocation->gpu].used -= allocation->resident ? size_of(allocation) : 0;
  allocation->resident = false;
}

static void forget(struct graph_allocation *gone) {
  *(gone->previous ? &gone->previous->next : &allocations) = gone->next;
  if (gone->next) {
    gone->next->previous = gone->previous;
  }
  leave(gone);
  space_give(gone->block);
  free(gone);
}

void graph_memory_remove(CUdeviceptr address) {
  struct graph_allocation *allocation = find(address);
  if (allocation && allocation->live) {
    allocation->removed = true;
  } else if (allocation) {
    forget(allocation);
  }
}

bool graph_memory_knows(CUdeviceptr address) {
  return find(address) != NULL;
}

bool graph_memory_is_live(CUdeviceptr address) {
  const struct graph_allocation *allocation = find(address);
  return allocation && allocation->live;
}

static uint64_t give_back_beyond(uint32_t gpu, uint64_t used) {
  uint64_t keep = memory_round(used, SIM_PAGE);
  uint64_t gone = pools[gpu].reserved > keep ? pools[gpu].reserved - keep : 0;
  if (gone > 0) {
    books_change(&driver.books, gpu, memory_pages(-(int64_t)gone));
    pools[gpu].reserved = keep;
  }
  return gone;
}

/* What no live pointer and no upload needs goes; a later launch takes it again. */
bool graph_memory_reclaim(uint32_t gpu) {
  for (struct graph_allocation *each = allocations; each; each = each->next) {
    if (each->gpu == gpu && !each->live && !each->wanted) {
      leave(each);
    }
  }
  return give_back_beyond(gpu, pools[gpu].used) > 0;
}

static void raise(uint64_t *high, uint64_t value) {
  *high = value > *high ? value : *high;
}

static bool make_resident(struct graph_allocation *allocation) {
  uint32_t gpu = allocation->gpu;
  for (;;) { /* to make room, slack may go that the first look counted on */
    uint64_t wanted = memory_round(pools[gpu].used + size_of(allocation), SIM_PAGE);
    if (wanted <= pools[gpu].reserved) {
      break;
    }
    uint64_t missing = wanted - pools[gpu].reserved;
    if (!memory_charge(gpu, memory_pages((int64_t)missing))) {
      return false;
    }
    pools[gpu].reserved += missing;
  }
  pools[gpu].used += size_of(allocation);
  allocation->resident = true;
  raise(&pools[gpu].used_high, pools[gpu].used);
  raise(&pools[gpu].reserved_high, pools[gpu].reserved);
  return true;
}

/* End an upload; one that failed leaves nothing behind. */
static void settle(const CUdeviceptr *addresses, unsigned count, bool complete) {
  for (unsigned i = 0; i < count; i++) {
    struct graph_allocation *allocation = find(addresses[i]);
    if (allocation && allocation->fresh && !complete) {
      leave(allocation);
      give_back_beyond(allocation->gpu, pools[allocation->gpu].used);
    }
    if (allocation) {
      allocation->wanted = allocation->fresh = false;
    }
  }
}

CUresult graph_memory_upload(const CUdeviceptr *addresses, unsigned count) {
  bool complete = true;
  for (unsigned i = 0; i < count; i++) {
    struct graph_allocation *allocation = find(addresses[i]);
    if (allocation) {
      allocation->wanted = true;
    }
  }
  for (unsigned i = 0; i < count && complete; i++) {
    struct graph_allocation *allocation = find(addresses[i]);
    if (allocation && !allocation->resident) {
      complete = allocation->fresh = make_resident(allocation);
    }
  }
  settle(addresses, count, complete);
  return complete ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult graph_memory_launch(const CUdeviceptr *addresses, unsigned count, bool auto_free) {
  for (unsigned i = 0; i < count && !auto_free; i++) {
    if (graph_memory_is_live(addresses[i])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  CUresult result = graph_memory_upload(addresses, count);
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
    struct graph_allocation *allocation = find(addresses[i]);
    if (allocation) {
      allocation->live = true;
    }
  }
  return result;
}

CUresult graph_memory_free(CUdeviceptr address) {
  struct graph_allocation *allocation = find(address);
  if (!allocation || !allocation->live) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  allocation->live = false;
  if (allocation->removed) {
    forget(allocation);
  }
  return CUDA_SUCCESS;
}

/* --- what programs ask and tell --- */

static CUresult enter_device(CUdevice device) {
  CUresult result = driver_enter();
  if (result == CUDA_SUCCESS && !driver_is_device(device)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  return result;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  CUresult result = enter_device(device);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  graph_memory_reclaim(driver.gpu[device]);
  return driver_leave(CUDA_SUCCESS);
}

static const uint64_t *figure(uint32_t gpu, CUgraphMem_attribute attribute) {
  switch (attribute) {
  case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    return &pools[gpu].used;
  case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    return &pools[gpu].used_high;
  case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
    return &pools[gpu].reserved;
  case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
    return &pools[gpu].reserved_high;
  default:
    return NULL;
  }
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
  CUresult result = enter_device(device);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const uint64_t *found = figure(driver.gpu[device], attr);
  if (!value || !found) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *(cuuint64_t *)value = *found;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
  CUresult result = enter_device(device);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  uint32_t gpu = driver.gpu[device];
  bool high = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  if (!value || !high || *(const cuuint64_t *)value != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
    pools[gpu].used_high = pools[gpu].used;
  } else {
    pools[gpu].reserved_high = pools[gpu].reserved;
  }
  return driver_leave(CUDA_SUCCESS);
}
