/* SPDX-License-Identifier: Apache-2.0
 *
 * Which pool is the default and which the current one, per location and type.
 */
#include "pool.h"

/* Places that have a default pool: pinned and managed on each device, pinned on the host and its one NUMA
 * node, managed on the host and without a place. */
enum { ON_DEVICE = 0, ON_HOST = SIM_GPUS, ON_NUMA, ANYWHERE, PLACES };
enum { PINNED, MANAGED, TYPES };

static struct {
  CUmemoryPool standard;
  CUmemoryPool current;
} table[TYPES][PLACES];

static CUresult place_of(const CUmemLocation *location, CUmemAllocationType type, int *place) {
  bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (!managed && type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (location->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    *place = ON_DEVICE + location->id;
    return driver_is_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
    *place = ON_HOST;
    return CUDA_SUCCESS;
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    *place = ON_NUMA;
    return location->id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_LOCATION_TYPE_NONE:
    *place = ANYWHERE;
    return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

static CUmemoryPool standard_of(const CUmemLocation *location, CUmemAllocationType type, int place) {
  CUmemoryPool *standard = &table[type == CU_MEM_ALLOCATION_TYPE_MANAGED][place].standard;
  CUmemPoolProps props = {.allocType = type, .location = *location};
  if (!*standard && pool_make(&props, standard) == CUDA_SUCCESS) {
    (*standard)->is_default = true;
  }
  return *standard;
}

static CUresult find(const CUmemLocation *location, CUmemAllocationType type, bool current,
                     CUmemoryPool *found) {
  int place;
  CUresult result = place_of(location, type, &place);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUmemoryPool set = table[type == CU_MEM_ALLOCATION_TYPE_MANAGED][place].current;
  CUmemoryPool pool = current && set ? set : standard_of(location, type, place);
  if (!pool) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *found = pool;
  return CUDA_SUCCESS;
}

CUmemoryPool pool_current(CUdevice device) {
  CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemoryPool pool = NULL;
  find(&location, CU_MEM_ALLOCATION_TYPE_PINNED, true, &pool);
  return pool;
}

void pool_forget_current(CUmemoryPool pool) {
  for (int type = 0; type < TYPES; type++) {
    for (int place = 0; place < PLACES; place++) {
      if (table[type][place].current == pool) {
        table[type][place].current = NULL;
      }
    }
  }
}

static CUresult get(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type,
                    bool current) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pool || !location) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(find(location, type, current, pool));
}

static CUresult set(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  CUresult result = driver_enter();
  int place;
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!location || !pool_is(pool) || pool->imported) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = place_of(location, type, &place);
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  bool same_id = location->type != CU_MEM_LOCATION_TYPE_DEVICE || pool->props.location.id == location->id;
  if (pool->props.allocType != type || pool->props.location.type != location->type || !same_id) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  table[type == CU_MEM_ALLOCATION_TYPE_MANAGED][place].current = pool;
  return driver_leave(CUDA_SUCCESS);
}

static CUmemLocation on(CUdevice device) {
  return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
  CUmemLocation location = on(dev);
  return get(pool_out, &location, CU_MEM_ALLOCATION_TYPE_PINNED, false);
}
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
  CUmemLocation location = on(dev);
  return get(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, true);
}
CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  CUmemLocation location = on(dev);
  return set(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type) {
  return get(pool_out, location, type, false);
}
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) {
  return get(pool, location, type, true);
}
CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
  return set(location, type, pool);
}
