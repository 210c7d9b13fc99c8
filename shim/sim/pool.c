/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "import.h"
#include "late.h"
#include "managed.h"

static CUmemoryPool pools;
static bool may_shrink; /* something was freed, or a threshold lowered, since the last synchronisation */

bool pool_is(CUmemoryPool pool) {
  for (CUmemoryPool known = pools; known; known = known->next) {
    if (known == pool) {
      return !known->destroyed;
    }
  }
  return false;
}

static bool zeroed(const unsigned char *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    if (bytes[i]) {
      return false;
    }
  }
  return true;
}

/* A device with one locality domain is that domain. */
static void without_domain(CUmemLocation *location) {
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN &&
      !location->localized.localityDomainId) {
    int device = location->localized.deviceId;
    *location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  }
}

static CUresult check_location(const CUmemPoolProps *props) {
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  switch (props->location.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    return driver_is_device(props->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_LOCATION_TYPE_NONE:
    return managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_LOCATION_TYPE_HOST:
    return props->handleTypes == CU_MEM_HANDLE_TYPE_NONE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    return props->location.id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

static CUresult check(const CUmemPoolProps *props) {
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if ((!managed && props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) ||
      (managed && (props->maxSize || props->usage || props->handleTypes)) || props->win32SecurityAttributes ||
      (props->usage & ~CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS) ||
      !zeroed(props->reserved, sizeof props->reserved)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows' handles; fabric handles need a fabric */
  }
  return check_location(props);
}

static void end_managed(struct arena_chunk *chunk) {
  if (chunk->managed) {
    managed_end(chunk->managed);
  }
}

static CUmemoryPool add(const CUmemPoolProps *props) {
  CUmemoryPool pool = calloc(1, sizeof *pool);
  if (!pool) {
    return NULL;
  }
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  bool device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  *pool = (struct CUmemPoolHandle_st){.next = pools,
                                      .props = *props,
                                      .place = managed  ? POOL_MANAGED
                                               : device ? POOL_DEVICE
                                                        : POOL_HOST,
                                      .gpu = device ? driver.gpu[props->location.id] : 0,
                                      .reuse = {1, 1, 1}};
  pool->props.maxSize = memory_round(props->maxSize, SIM_PAGE);
  pool->arena.owner = pool;
  pool->arena.host = pool->place != POOL_DEVICE;
  pool->arena.removing = managed ? end_managed : NULL;
  pools = pool;
  return pool;
}

static void drop(CUmemoryPool gone) {
  CUmemoryPool *link = &pools;
  while (*link != gone) {
    link = &(*link)->next;
  }
  *link = gone->next;
  if (gone->shared.slot) {
    shared_drop(&driver.books, &gone->shared);
  }
  free(gone);
}

CUresult pool_make(const CUmemPoolProps *props, CUmemoryPool *made) {
  CUmemPoolProps wanted = *props;
  without_domain(&wanted.location);
  CUresult result = check(&wanted);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  CUmemoryPool pool = add(&wanted);
  if (!pool) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct sim_shared about = {
      .kind = SIM_SHARED_POOL, .gpu = pool->gpu, .flags = pool->place, .size = pool->props.maxSize};
  if (wanted.handleTypes && !shared_make(&driver.books, about, &pool->shared)) {
    drop(pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *made = pool;
  return CUDA_SUCCESS;
}

CUresult pool_adopt(struct shared *shared, CUmemoryPool *made) {
  const struct sim_shared *about = shared_about(&driver.books, shared);
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_INVISIBLE, .id = CU_DEVICE_INVALID}};
  if (driver_ordinal(about->gpu) >= 0) {
    props.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = driver_ordinal(about->gpu)};
  }
  if (about->flags == POOL_HOST) {
    props.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
  }
  if (about->flags != POOL_HOST && !driver_shares(shared->slot)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUmemoryPool pool = add(&props);
  if (!pool) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  pool->imported = true;
  pool->shared = *shared;
  *made = pool;
  return CUDA_SUCCESS;
}

/* --- memory of a pool --- */

static bool charge(CUmemoryPool pool, uint64_t bytes) {
  if (pool->place != POOL_DEVICE) {
    return true;
  }
  if (!pool->shared.slot) {
    return memory_charge(pool->gpu, memory_pages((int64_t)bytes));
  }
  return memory_charge_shared(&pool->shared, pool->shared.held + bytes);
}

static void refund(CUmemoryPool pool, uint64_t bytes) {
  if (pool->place != POOL_DEVICE || bytes == 0) {
    return;
  }
  if (pool->shared.slot) {
    shared_set(&driver.books, &pool->shared, pool->shared.held - bytes);
  } else {
    books_change(&driver.books, pool->gpu, memory_pages(-(int64_t)bytes));
  }
}

static bool grow_by(CUmemoryPool pool, uint64_t bytes) {
  if (!charge(pool, bytes)) {
    return false;
  }
  if (!arena_grow(&pool->arena, bytes)) {
    refund(pool, bytes);
    return false;
  }
  struct arena_chunk *fresh = pool->arena.chunks;
  if (pool->place == POOL_MANAGED) {
    fresh->managed = managed_new(NULL, fresh->block->address, bytes);
  }
  return true;
}

/* By whole steps; where there is no room for that, by what is needed. */
static bool grow(CUmemoryPool pool, size_t size) {
  uint64_t least = memory_round(size, SIM_PAGE);
  uint64_t usual = memory_round(size, POOL_STEP);
  uint64_t room = pool->props.maxSize ? pool->props.maxSize - pool->arena.reserved : UINT64_MAX;
  if (least > room || least < size) {
    return false;
  }
  if (usual <= room && grow_by(pool, usual)) {
    return true;
  }
  return least < usual && grow_by(pool, least);
}

static void raise(uint64_t *high, uint64_t value) {
  *high = value > *high ? value : *high;
}

CUresult pool_allocate(CUmemoryPool pool, size_t size, CUdeviceptr *address) {
  struct arena_segment *segment = NULL;
  if (size > 1ULL << 42) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  segment = arena_take(&pool->arena, size);
  if (!segment && grow(pool, size)) {
    segment = arena_take(&pool->arena, size);
  }
  if (!segment) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  raise(&pool->reserved_high, pool->arena.reserved);
  raise(&pool->used_high, pool->arena.used);
  if (pool->arena.host) {
    space_back_part(segment->address, segment->asked, true, &segment->backing);
  }
  *address = segment->address;
  return CUDA_SUCCESS;
}

void pool_trim(CUmemoryPool pool, uint64_t keep) {
  refund(pool, arena_shrink(&pool->arena, keep));
}

/* A destroyed pool keeps only what its live pointers need. */
static void after_free(CUmemoryPool pool) {
  if (pool->destroyed) {
    pool_trim(pool, 0);
    if (pool->arena.used == 0 && pool->imports == 0) {
      drop(pool);
    }
  }
}

struct arena_segment *pool_find(const struct space_block *chunk, uintptr_t address, bool around) {
  return arena_find(chunk->owner, address, around);
}

CUresult pool_free(const struct space_block *chunk, uintptr_t address) {
  CUmemoryPool pool = pool_of(chunk);
  struct arena_segment *segment = pool_find(chunk, address, false);
  if (!segment) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (segment->chunk->managed) {
    managed_leave(segment->chunk->managed, segment->address, segment->size, true);
  }
  arena_give(segment);
  may_shrink = true;
  after_free(pool);
  return CUDA_SUCCESS;
}

CUresult pool_free_import(struct space_block *block, uintptr_t address) {
  struct import *import = block->owner;
  if (import->kind != IMPORT_POOL || block->address != address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUmemoryPool pool = import->pool;
  import_give(block);
  pool->imports--;
  after_free(pool);
  return CUDA_SUCCESS;
}

void pool_destroy(CUmemoryPool pool) {
  pool_forget_current(pool);
  pool->destroyed = true;
  after_free(pool);
}

void pool_set_threshold(CUmemoryPool pool, uint64_t bytes) {
  pool->threshold = bytes;
  may_shrink = true;
}

void pools_synchronized(void) {
  late_settle();
  if (!may_shrink) {
    return;
  }
  may_shrink = false;
  for (CUmemoryPool pool = pools; pool; pool = pool->next) {
    if (pool->arena.idle && pool->arena.reserved > pool->threshold) {
      pool_trim(pool, pool->threshold);
    }
  }
}

bool pools_reclaim(uint32_t gpu) {
  bool any = false;
  for (CUmemoryPool pool = pools; pool; pool = pool->next) {
    if (pool->place == POOL_DEVICE && pool->gpu == gpu && pool->arena.idle) {
      pool_trim(pool, 0);
      any = true;
    }
  }
  return any;
}
