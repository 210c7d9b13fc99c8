/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pool tells about itself, and what can be set.
 */
#include "pool.h"

/* A pool's figures are 64 bits wide, everything else is an int. */
static bool is_wide(CUmemPool_attribute attribute) {
  return (attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH) ||
         attribute == CU_MEMPOOL_ATTR_MAX_POOL_SIZE;
}

static bool is_flag(CUmemPool_attribute attribute) {
  return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
         attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

static uint64_t wide_value(CUmemoryPool pool, CUmemPool_attribute attribute) {
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    return pool->threshold;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    return pool->arena.reserved;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    return pool->reserved_high;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    return pool->arena.used;
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    return pool->used_high;
  default:
    return pool->props.maxSize;
  }
}

static bool narrow_value(CUmemoryPool pool, CUmemPool_attribute attribute, int *value) {
  switch (attribute) {
  case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
    *value = (int)pool->props.allocType;
    return true;
  case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
    *value = (int)pool->props.handleTypes;
    return true;
  case CU_MEMPOOL_ATTR_LOCATION_ID:
    *value = pool->props.location.id;
    return true;
  case CU_MEMPOOL_ATTR_LOCATION_TYPE:
    *value = (int)pool->props.location.type;
    return true;
  case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
    *value = (pool->props.usage & CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) != 0;
    return true;
  case CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID:
    *value = -1; /* every GPU here is one domain */
    return true;
  default:
    return false;
  }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool measured = is_wide(attr) || is_flag(attr);
  if (!value || !pool_is(pool) || (measured && pool->imported)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (is_wide(attr)) {
    *(cuuint64_t *)value = wide_value(pool, attr);
  } else if (is_flag(attr)) {
    *(int *)value = pool->reuse[attr - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
  } else if (!narrow_value(pool, attr, value)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(CUDA_SUCCESS);
}

/* A high watermark can only be reset. */
static CUresult reset(uint64_t *high, uint64_t current, cuuint64_t value) {
  if (value != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *high = current;
  return CUDA_SUCCESS;
}

static CUresult change(CUmemoryPool pool, CUmemPool_attribute attribute, const void *value) {
  if (is_flag(attribute)) {
    pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(const int *)value != 0;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    pool_set_threshold(pool, *(const cuuint64_t *)value);
    return CUDA_SUCCESS;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    return reset(&pool->reserved_high, pool->arena.reserved, *(const cuuint64_t *)value);
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    return reset(&pool->used_high, pool->arena.used, *(const cuuint64_t *)value);
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!value || !pool_is(pool) || pool->imported) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(change(pool, attr, value));
}
