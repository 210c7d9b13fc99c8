/* SPDX-License-Identifier: Apache-2.0
 *
 * Pinned host memory: known to the driver, never part of a GPU's books.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "memory.h"

struct pinned {
  struct pinned *next;
  char *start;
  size_t size;
  unsigned flags;
  bool ours; /* allocated here, not registered */
  CUcontext context;
  uint64_t id;
};

static struct pinned *all_pinned;

/* The memory around an address, if it is pinned. */
static struct pinned *find(const void *pointer) {
  for (struct pinned *pinned = all_pinned; pinned; pinned = pinned->next) {
    if ((const char *)pointer >= pinned->start && (const char *)pointer < pinned->start + pinned->size) {
      return pinned;
    }
  }
  return NULL;
}

bool host_find(uintptr_t address, struct host_range *range) {
  const struct pinned *pinned = find((const void *)address);
  if (pinned) {
    *range = (struct host_range){(uintptr_t)pinned->start, pinned->size, pinned->context, pinned->id};
  }
  return pinned;
}

static CUresult enter_context(void) {
  CUcontext context;
  return driver_enter_context(&context);
}

static CUresult add(void *start, size_t size, unsigned flags, bool ours) {
  struct pinned *pinned = malloc(sizeof *pinned);
  if (!pinned) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pinned = (struct pinned){
      .next = all_pinned, .start = start, .size = size, .flags = flags, .ours = ours, .id = space_new_id()};
  context_current(&pinned->context);
  all_pinned = pinned;
  return CUDA_SUCCESS;
}

static void drop(struct pinned *gone) {
  struct pinned **link = &all_pinned;
  while (*link != gone) {
    link = &(*link)->next;
  }
  *link = gone->next;
  free(gone);
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
  const unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  CUresult result = enter_context();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pp || bytesize == 0 || (Flags & ~known) != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  void *map = mmap(NULL, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  result = add(map, bytesize, Flags, true);
  if (result != CUDA_SUCCESS) {
    munmap(map, bytesize);
    return driver_leave(result);
  }
  *pp = map;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) {
  return cuMemHostAlloc(pp, bytesize, 0);
}
CUresult cuMemAllocHost(void **pp, unsigned int bytesize) {
  return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p) {
  CUresult result = enter_context();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct pinned *pinned = find(p);
  if (!pinned || !pinned->ours || pinned->start != p) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  munmap(pinned->start, pinned->size);
  drop(pinned);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags) {
  CUresult result = enter_context();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!p || bytesize == 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (find(p) || find((char *)p + bytesize - 1)) {
    return driver_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  }
  return driver_leave(add(p, bytesize, Flags, false));
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
  return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p) {
  CUresult result = enter_context();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct pinned *pinned = find(p);
  if (!pinned || pinned->ours || pinned->start != p) {
    return driver_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  }
  drop(pinned);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p) {
  CUresult result = enter_context();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct pinned *pinned = find(p);
  if (!pFlags || !pinned || !pinned->ours) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *pFlags = pinned->flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
  CUresult result = enter_context();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pdptr || Flags != 0 || !find(p)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *pdptr = (CUdeviceptr)p;
  return driver_leave(CUDA_SUCCESS);
}
