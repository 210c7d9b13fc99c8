/* SPDX-License-Identifier: Apache-2.0
 *
 * Which pools there are: those that the program makes or is told of, the current one of each
 * device, and each device's graph memory. Pools keep their place; numbers are used again.
 */
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "books.h"
#include "capture.h"
#include "contexts.h"
#include "hooks.h"
#include "pool_book.h"
#include "sightings.h"
#include "state.h"

enum { CHUNK = 64, CHUNKS = 256 };

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct aq_pool *chunks[CHUNKS];
static uint32_t pool_count; /* numbers 1 .. pool_count have been given out */
static struct aq_pool *free_pools;
static struct aq_pool *current[AQ_MAX_DEVICES];
static unsigned choices; /* how often the program may have chosen another one */
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
  pool->number = pool_count + 1;
  __atomic_store_n(&pool_count, pool->number, __ATOMIC_RELEASE);
  return pool;
}

/* All but what threads that still look at it may change. */
static void clear(struct aq_pool *pool) {
  size_t kept = offsetof(struct aq_pool, handle);
  memset((char *)pool + kept, 0, sizeof(*pool) - kept);
}

/* Under the table's lock. */
static void put_back(struct aq_pool *pool) {
  clear(pool);
  pool->next_free = free_pools;
  free_pools = pool;
}

void aq_pool_retire(struct aq_pool *pool) {
  enum aq_pool_kind kind = DESTROYED_POOL;
  struct aq_freed reserve;
  if (!__atomic_compare_exchange_n(&pool->kind, &kind, NO_POOL, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    return;
  if (pool->share && aq_free_begin(AQ_RESERVE, pool->number, &reserve))
    aq_free_end(&reserve, true);
  pthread_mutex_lock(&table_lock);
  put_back(pool);
  pthread_mutex_unlock(&table_lock);
}

/* Under the table's lock. */
static struct aq_pool *make(enum aq_pool_kind kind, CUmemoryPool handle, struct aq_share *share,
                            CUdevice device, bool managed) {
  struct aq_pool *pool = fresh();
  if (!pool)
    return NULL;
  clear(pool);
  pool->handle = handle;
  pool->share = share;
  pool->device = device;
  if (share &&
      !aq_note(&(struct aq_record){
          .thing = AQ_RESERVE, .key = pool->number, .share = (uint8_t)share->index, .count = managed})) {
    put_back(pool);
    return NULL;
  }
  __atomic_store_n(&pool->kind, kind, __ATOMIC_RELEASE);
  return pool;
}

struct aq_pool *aq_pool_find(CUmemoryPool handle) {
  struct aq_record record;
  return aq_records_find(AQ_POOL, (uintptr_t)handle, &record) ? aq_pool_numbered(record.number) : NULL;
}

struct aq_share *aq_pool_payer(const struct aq_pool *pool) {
  return pool->share;
}

/* Until it is destroyed, or stays after all, other threads leave its handle alone; those that are asking
 * the driver about it are waited for. */
static void send_away(struct aq_pool *pool) {
  __atomic_store_n(&pool->kind, LEAVING_POOL, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&pool->held, __ATOMIC_SEQ_CST) > 0)
    sched_yield();
}

AQ_RARE static struct aq_pool *learn(CUmemoryPool handle, struct aq_share *share, bool managed) {
  struct aq_pool *pool = aq_pool_find(handle);
  if (pool)
    return pool;
  pthread_mutex_lock(&table_lock);
  pool = aq_pool_find(handle); /* another thread was first */
  bool made = !pool && (pool = make(DEVICE_POOL, handle, share, 0, managed));
  bool named =
      !made ||
      aq_note(&(struct aq_record){.thing = AQ_POOL, .key = (uintptr_t)handle, .number = pool->number});
  pthread_mutex_unlock(&table_lock);
  if (!named) {
    send_away(pool);
    __atomic_store_n(&pool->kind, DESTROYED_POOL, __ATOMIC_SEQ_CST);
    aq_pool_retire(pool);
    return NULL;
  }
  if (pool)
    aq_pool_refresh(pool);
  return pool;
}

struct aq_pool *aq_pool_learn(CUmemoryPool handle, struct aq_share *share) {
  return learn(handle, share, false);
}

struct aq_pool *aq_pool_learn_located(CUmemoryPool handle, const CUmemLocation *location,
                                      CUmemAllocationType type) {
  CUdevice device = aq_location_device(location);
  struct aq_here here;
  struct aq_share *share = device >= 0 ? aq_device_share(device) : NULL;
  /* Managed memory counts wherever it is; for a pool of no place, where the program is at work. */
  if (!share && type == CU_MEM_ALLOCATION_TYPE_MANAGED)
    share = aq_here(&here) == CUDA_SUCCESS ? here.share : aq_device_share(0);
  return learn(handle, share, type == CU_MEM_ALLOCATION_TYPE_MANAGED);
}

AQ_RARE static struct aq_pool *ask_current(CUdevice device) {
  unsigned before = aq_pool_choices();
  CUmemoryPool handle = NULL;
  if (!AQ_REAL(cuDeviceGetMemPool))
    return NULL;
  struct aq_own_calls calls = aq_own_calls_begin();
  CUresult result = AQ_REAL(cuDeviceGetMemPool)(&handle, device);
  aq_own_calls_end(&calls);
  if (result != CUDA_SUCCESS || !handle)
    return NULL;
  struct aq_pool *pool = aq_pool_learn(handle, aq_device_share(device));
  pthread_mutex_lock(&table_lock);
  if (before == choices) /* what the driver said still holds */
    __atomic_store_n(&current[device], pool, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&table_lock);
  return pool;
}

struct aq_pool *aq_pool_current(CUdevice device) {
  struct aq_pool *pool = __atomic_load_n(&current[device], __ATOMIC_ACQUIRE);
  return pool ? pool : ask_current(device);
}

void aq_pool_forget_current(void) {
  pthread_mutex_lock(&table_lock);
  __atomic_store_n(&choices, choices + 1, __ATOMIC_SEQ_CST);
  for (int device = 0; device < AQ_MAX_DEVICES; device++)
    __atomic_store_n(&current[device], NULL, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&table_lock);
}

unsigned aq_pool_choices(void) {
  return __atomic_load_n(&choices, __ATOMIC_SEQ_CST);
}

struct aq_pool *aq_pool_of_graphs(CUdevice device) {
  struct aq_pool *pool = __atomic_load_n(&graphs[device], __ATOMIC_ACQUIRE);
  if (pool || !aq_device_share(device))
    return pool;
  pthread_mutex_lock(&table_lock);
  pool = graphs[device];
  if (!pool)
    pool = make(GRAPH_POOL, NULL, aq_device_share(device), device, false);
  __atomic_store_n(&graphs[device], pool, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&table_lock);
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

static bool holds_more_than_it_uses(const struct aq_pool *pool) {
  uint64_t used = __atomic_load_n(&pool->used, __ATOMIC_RELAXED);
  uint64_t charged = __atomic_load_n(&pool->charged, __ATOMIC_RELAXED);
  return pool->share && charged > used;
}

struct aq_pool *aq_pool_destroy_begin(CUmemoryPool handle) {
  struct aq_freed freed;
  aq_pool_forget_current();
  if (!aq_free_begin(AQ_POOL, (uintptr_t)handle, &freed))
    return NULL;
  struct aq_pool *pool = aq_pool_numbered(freed.record.number);
  if (holds_more_than_it_uses(pool)) {
    aq_pool_trim(pool); /* it cannot be asked any more afterwards */
    aq_pool_refresh(pool);
  }
  send_away(pool);
  return pool;
}

void aq_pool_destroy_end(struct aq_pool *pool, CUmemoryPool handle, bool done) {
  aq_pool_forget_current();
  if (!done) {
    __atomic_store_n(&pool->kind, DEVICE_POOL, __ATOMIC_SEQ_CST);
    struct aq_record record = {.thing = AQ_POOL, .key = (uintptr_t)handle, .number = pool->number};
    aq_note(&record);
    return;
  }
  __atomic_store_n(&pool->kind, DESTROYED_POOL, __ATOMIC_SEQ_CST);
  if (!pool->share || __atomic_load_n(&pool->used, __ATOMIC_SEQ_CST) == 0)
    aq_pool_retire(pool);
}

/* --- all pools --- */

void aq_pools_synchronised(void) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++) {
    struct aq_pool *pool = aq_pool_numbered(number);
    if (!aq_pool_hold(pool))
      continue;
    if (aq_pool_kind_of(pool) == DEVICE_POOL && holds_more_than_it_uses(pool) &&
        __atomic_load_n(&pool->charged, __ATOMIC_RELAXED) >
            __atomic_load_n(&pool->threshold, __ATOMIC_RELAXED))
      aq_pool_refresh(pool);
    aq_pool_let_go(pool);
  }
}

void aq_pools_refresh(void) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++)
    aq_pool_refresh(aq_pool_numbered(number));
}

/* Of graph memory it is not known how much is used. */
void aq_pools_reclaim(struct aq_share *share) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++) {
    struct aq_pool *pool = aq_pool_numbered(number);
    if (!aq_pool_hold(pool))
      continue;
    if (pool->share == share && holds_more_than_it_uses(pool)) {
      aq_pool_trim(pool);
      aq_pool_refresh(pool);
    }
    aq_pool_let_go(pool);
  }
}

void aq_pools_reset(void) {
  if (pool_count > 0) /* new pools count their answers from zero */
    memset(aq_sightings, 0, sizeof(aq_sightings));
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
