/* SPDX-License-Identifier: Apache-2.0
 *
 * Which pools there are: those that the program makes or is told of, the current one of each
 * device, and each device's graph memory. Pools keep their place; numbers are used again.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "books.h"
#include "capture.h"
#include "contexts.h"
#include "hooks.h"
#include "pool_book.h"
#include "state.h"

enum { CHUNK = 64, CHUNKS = 256 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct aq_pool *chunks[CHUNKS];
static uint32_t pool_count; /* numbers 1 .. pool_count have been given out */
static struct aq_pool *free_pools;
static struct aq_pool *current[AQ_MAX_DEVICES];
static struct aq_pool *graphs[AQ_MAX_DEVICES];

struct aq_pool *aq_pool_numbered(uint32_t number) {
  struct aq_pool *chunk = __atomic_load_n(&chunks[(number - 1) / CHUNK], __ATOMIC_ACQUIRE);
  return &chunk[(number - 1) % CHUNK];
}

/* Under the table's lock. */
static struct aq_pool *fresh(void) {
  struct aq_pool *pool = free_pools;
  if (pool) {
    free_pools = pool->next_free;
    return pool;
  }
  if (pool_count == CHUNK * CHUNKS)
    return NULL;
  struct aq_pool **chunk = &chunks[pool_count / CHUNK];
  if (!*chunk) {
    void *pages =
        mmap(NULL, CHUNK * sizeof(*pool), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
      return NULL;
    __atomic_store_n(chunk, pages, __ATOMIC_RELEASE);
  }
  pool = &(*chunk)[pool_count % CHUNK];
  pool->number = ++pool_count;
  return pool;
}

void aq_pool_retire(struct aq_pool *pool) {
  uint32_t number = pool->number;
  struct aq_freed reserve;
  if (pool->share && aq_free_begin(AQ_RESERVE, number, &reserve))
    aq_free_end(&reserve, true);
  pthread_mutex_lock(&table_lock);
  *pool = (struct aq_pool){.number = number, .next_free = free_pools};
  free_pools = pool;
  pthread_mutex_unlock(&table_lock);
}

static struct aq_pool *make(enum aq_pool_kind kind, CUmemoryPool handle, struct aq_share *share,
                            CUdevice device) {
  pthread_mutex_lock(&table_lock);
  struct aq_pool *pool = fresh();
  if (pool) {
    uint32_t number = pool->number;
    *pool =
        (struct aq_pool){.number = number, .handle = handle, .share = share, .device = device, .kind = kind};
  }
  pthread_mutex_unlock(&table_lock);
  if (!pool || !share)
    return pool;
  struct aq_record reserve = {.thing = AQ_RESERVE, .key = pool->number, .share = (uint8_t)share->index};
  if (aq_note(&reserve))
    return pool;
  aq_pool_retire(pool);
  return NULL;
}

struct aq_pool *aq_pool_find(CUmemoryPool handle) {
  struct aq_record record;
  return aq_records_find(AQ_POOL, (uintptr_t)handle, &record) ? aq_pool_numbered(record.number) : NULL;
}

struct aq_share *aq_pool_payer(const struct aq_pool *pool) {
  return pool->share;
}

struct aq_pool *aq_pool_learn(CUmemoryPool handle, struct aq_share *share) {
  struct aq_pool *pool = aq_pool_find(handle);
  if (pool)
    return pool;
  pool = make(DEVICE_POOL, handle, share, 0);
  struct aq_record record = {.thing = AQ_POOL, .key = (uintptr_t)handle, .number = pool ? pool->number : 0};
  if (pool && !aq_note(&record)) {
    aq_pool_retire(pool);
    pool = NULL;
  }
  if (pool)
    aq_pool_refresh(pool);
  return pool;
}

struct aq_pool *aq_pool_learn_located(CUmemoryPool handle, const CUmemLocation *location,
                                      CUmemAllocationType type) {
  CUdevice device = aq_location_device(location);
  struct aq_here here;
  struct aq_share *share = device >= 0 ? aq_device_share(device) : NULL;
  /* Managed memory counts wherever it is; for a pool of no place, where the program is at work. */
  if (!share && type == CU_MEM_ALLOCATION_TYPE_MANAGED)
    share = aq_here(&here) == CUDA_SUCCESS ? here.share : aq_device_share(0);
  return aq_pool_learn(handle, share);
}

struct aq_pool *aq_pool_current(CUdevice device) {
  struct aq_pool *pool = __atomic_load_n(&current[device], __ATOMIC_ACQUIRE);
  CUmemoryPool handle = NULL;
  if (pool || !AQ_REAL(cuDeviceGetMemPool))
    return pool;
  struct aq_own_calls calls = aq_own_calls_begin();
  CUresult result = AQ_REAL(cuDeviceGetMemPool)(&handle, device);
  aq_own_calls_end(&calls);
  if (result != CUDA_SUCCESS || !handle)
    return NULL;
  pool = aq_pool_learn(handle, aq_device_share(device));
  __atomic_store_n(&current[device], pool, __ATOMIC_RELEASE);
  return pool;
}

void aq_pool_forget_current(void) {
  for (int device = 0; device < AQ_MAX_DEVICES; device++)
    __atomic_store_n(&current[device], NULL, __ATOMIC_RELEASE);
}

struct aq_pool *aq_pool_of_graphs(CUdevice device) {
  struct aq_pool *pool = __atomic_load_n(&graphs[device], __ATOMIC_ACQUIRE);
  struct aq_pool *other = NULL;
  if (pool || !aq_device_share(device))
    return pool;
  pool = make(GRAPH_POOL, NULL, aq_device_share(device), device);
  if (pool && !__atomic_compare_exchange_n(&graphs[device], &other, pool, false, __ATOMIC_SEQ_CST,
                                           __ATOMIC_SEQ_CST)) {
    aq_pool_retire(pool);
    pool = other;
  }
  return pool;
}

CUdevice aq_pool_device(const struct aq_pool *pool) {
  return pool->device;
}

uint32_t aq_pool_trims(const struct aq_pool *pool) {
  return __atomic_load_n(&pool->trims, __ATOMIC_SEQ_CST);
}

void aq_pool_trimmed(struct aq_pool *pool) {
  __atomic_add_fetch(&pool->trims, 1, __ATOMIC_SEQ_CST);
  aq_pool_refresh(pool);
}

void aq_pool_set_threshold(struct aq_pool *pool, uint64_t bytes) {
  __atomic_store_n(&pool->threshold, bytes, __ATOMIC_RELAXED);
}

struct aq_pool *aq_pool_destroy_begin(CUmemoryPool handle) {
  struct aq_freed freed;
  aq_pool_forget_current();
  if (!aq_free_begin(AQ_POOL, (uintptr_t)handle, &freed))
    return NULL;
  struct aq_pool *pool = aq_pool_numbered(freed.record.number);
  if (pool->share && __atomic_load_n(&pool->used, __ATOMIC_ACQUIRE) < pool->charged) {
    aq_pool_trim(pool); /* it cannot be asked any more afterwards */
    aq_pool_refresh(pool);
  }
  return pool;
}

void aq_pool_destroy_end(struct aq_pool *pool, CUmemoryPool handle, bool done) {
  aq_pool_forget_current();
  if (!done) {
    struct aq_record record = {.thing = AQ_POOL, .key = (uintptr_t)handle, .number = pool->number};
    aq_note(&record);
    return;
  }
  pool->kind = DESTROYED_POOL;
  if (!pool->share || __atomic_load_n(&pool->used, __ATOMIC_SEQ_CST) == 0)
    aq_pool_retire(pool);
}

/* --- all pools --- */

static bool holds_more_than_it_uses(const struct aq_pool *pool) {
  uint64_t used = __atomic_load_n(&pool->used, __ATOMIC_RELAXED);
  uint64_t charged = __atomic_load_n(&pool->charged, __ATOMIC_RELAXED);
  return pool->share && pool->kind == DEVICE_POOL && charged > used &&
         charged > __atomic_load_n(&pool->threshold, __ATOMIC_RELAXED);
}

void aq_pools_synchronised(void) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++)
    if (holds_more_than_it_uses(aq_pool_numbered(number)))
      aq_pool_refresh(aq_pool_numbered(number));
}

void aq_pools_refresh(void) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++)
    if (aq_pool_numbered(number)->charged > 0)
      aq_pool_refresh(aq_pool_numbered(number));
}

void aq_pools_reclaim(struct aq_share *share) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++) {
    struct aq_pool *pool = aq_pool_numbered(number);
    if (pool->share != share || pool->kind == DESTROYED_POOL || pool->charged == 0)
      continue;
    if (pool->kind == DEVICE_POOL && pool->charged <= pool->used)
      continue;
    aq_pool_trim(pool);
    aq_pool_refresh(pool);
  }
}

void aq_pools_reset(void) {
  for (int i = 0; i < CHUNKS; i++)
    if (chunks[i])
      munmap(chunks[i], CHUNK * sizeof(*chunks[i]));
  memset(chunks, 0, sizeof(chunks));
  memset(current, 0, sizeof(current));
  memset(graphs, 0, sizeof(graphs));
  pool_count = 0;
  free_pools = NULL;
  table_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
