/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pool has reserved is one charge, kept as the AQ_RESERVE record of its number.
 *
 * The sum of live sizes tells whether an allocation will make the pool grow; if so, that much is
 * announced first. Afterwards the driver is asked what is reserved now: usually what is charged
 * already, and the shared slot is not touched. Two readings may come back in another order than
 * they were made; a ticket drawn before each tells which is newer. Whoever makes a pool grow reads
 * it afterwards, so the newest reading includes all growth.
 */
#include "pools.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "books.h"
#include "capture.h"
#include "contexts.h"
#include "hooks.h"
#include "state.h"

enum { CHUNK = 64, CHUNKS = 256, SPINS = 200, NEAR = 32 };

#define GRAIN      512ULL
#define LEAST_STEP (2ULL << 20)
#define USUAL_STEP (32ULL << 20) /* CUDA pools have been seen to grow by this */

enum kind { DEVICE_POOL, GRAPH_POOL, DESTROYED_POOL };

struct aq_pool {
  CUmemoryPool handle;
  struct aq_share *share; /* NULL: nobody pays */
  uint32_t number;
  CUdevice device; /* of graph memory */
  uint32_t trims;
  enum kind kind;
  unsigned char locked;
  bool step_is_known; /* the pool has been seen not to grow by less */
  uint64_t used;      /* live sizes, and those being asked for */
  uint64_t charged;   /* bytes of its record: what was reserved at the newest reading */
  uint64_t announced; /* by calls in progress, beyond that */
  uint64_t tickets;   /* drawn */
  uint64_t newest;    /* whose reading was the last to count */
  uint64_t threshold;
  uint64_t step; /* by which it grows; 0: not seen to grow yet */
  struct aq_pool *next_free;
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct aq_pool *chunks[CHUNKS];
static uint32_t pool_count; /* numbers 1 .. pool_count have been given out */
static struct aq_pool *free_pools;
static struct aq_pool *current[AQ_MAX_DEVICES];
static struct aq_pool *graphs[AQ_MAX_DEVICES];

static inline uint64_t round_up(uint64_t bytes, uint64_t step) {
  return bytes > UINT64_MAX - step ? UINT64_MAX & ~(step - 1) : (bytes + step - 1) & ~(step - 1);
}

static void lock(struct aq_pool *pool) {
  for (unsigned spins = 0; __atomic_exchange_n(&pool->locked, 1, __ATOMIC_ACQUIRE); spins++)
    if (spins > SPINS)
      sched_yield();
}

static void unlock(struct aq_pool *pool) {
  __atomic_store_n(&pool->locked, 0, __ATOMIC_RELEASE);
}

static struct aq_pool *numbered(uint32_t number) {
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

AQ_RARE static void retire(struct aq_pool *pool) {
  uint32_t number = pool->number;
  struct aq_freed reserve;
  if (pool->share && aq_free_begin(AQ_RESERVE, number, &reserve))
    aq_free_end(&reserve, true);
  pthread_mutex_lock(&table_lock);
  *pool = (struct aq_pool){.number = number, .next_free = free_pools};
  free_pools = pool;
  pthread_mutex_unlock(&table_lock);
}

static struct aq_pool *make(enum kind kind, CUmemoryPool handle, struct aq_share *share, CUdevice device) {
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
  retire(pool);
  return NULL;
}

/* --- what the driver says --- */

static bool read_reserved(const struct aq_pool *pool, uint64_t *bytes) {
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  struct aq_own_calls calls = aq_own_calls_begin();
  if (pool->kind == DEVICE_POOL && AQ_REAL(cuMemPoolGetAttribute))
    result = AQ_REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
  else if (pool->kind == GRAPH_POOL && AQ_REAL(cuDeviceGetGraphMemAttribute))
    result =
        AQ_REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
  aq_own_calls_end(&calls);
  return result == CUDA_SUCCESS;
}

static void trim(struct aq_pool *pool) {
  struct aq_own_calls calls = aq_own_calls_begin();
  if (pool->kind == DEVICE_POOL && AQ_REAL(cuMemPoolTrimTo))
    AQ_REAL(cuMemPoolTrimTo)(pool->handle, 0);
  else if (pool->kind == GRAPH_POOL && AQ_REAL(cuDeviceGraphMemTrim))
    AQ_REAL(cuDeviceGraphMemTrim)(pool->device);
  __atomic_add_fetch(&pool->trims, 1, __ATOMIC_SEQ_CST);
  aq_own_calls_end(&calls);
}

/* --- the charge --- */

/* Under the lock. False: it has grown past what was announced, and the share with it. */
static bool charge_reading(struct aq_pool *pool, struct aq_charge *announced, uint64_t reserved,
                           bool strictly) {
  bool fits = true;
  if (reserved < pool->charged) {
    if (pool->kind == GRAPH_POOL) /* the driver has made room: what was resident may not be */
      __atomic_add_fetch(&pool->trims, 1, __ATOMIC_SEQ_CST);
    aq_give_from(pool->share, AQ_RESERVE, pool->number, pool->charged - reserved);
  } else if (reserved > pool->charged) {
    uint64_t grown = reserved - pool->charged;
    struct aq_charge part = *announced;
    part.bytes = grown < announced->bytes ? grown : announced->bytes;
    announced->bytes -= part.bytes;
    if (part.bytes)
      aq_charge_into(&part, AQ_RESERVE, pool->number);
    if (grown > part.bytes) {
      aq_force(pool->share, grown - part.bytes, &part);
      aq_charge_into(&part, AQ_RESERVE, pool->number);
      /* What calls in progress have announced may have been read already. */
      fits = !aq_is_over(pool->share, strictly ? 0 : pool->announced);
    }
  }
  __atomic_store_n(&pool->charged, reserved, __ATOMIC_RELEASE);
  return fits;
}

/* Enters what the driver says, and ends what a call has announced. As above. */
static bool settle(struct aq_pool *pool, struct aq_charge *announced, bool strictly) {
  uint64_t reserved = 0;
  uint64_t ticket = __atomic_add_fetch(&pool->tickets, 1, __ATOMIC_SEQ_CST);
  bool known = read_reserved(pool, &reserved);
  bool fits = true;
  lock(pool);
  pool->announced -= announced->bytes;
  if (known && ticket > pool->newest) {
    pool->newest = ticket;
    fits = charge_reading(pool, announced, reserved, strictly);
  }
  aq_cancel(announced);
  unlock(pool);
  return fits;
}

void aq_pool_refresh(struct aq_pool *pool) {
  struct aq_charge nothing = {pool->share, 0, 0};
  if (pool->share && pool->kind != DESTROYED_POOL)
    settle(pool, &nothing, true);
}

/* By how much an allocation makes the pool grow, from how much others did. */
static void learn_step(struct aq_pool *pool, uint64_t bytes, uint64_t grown) {
  uint64_t step = grown & -grown;
  if (pool->kind != DEVICE_POOL || step < LEAST_STEP)
    return;
  if (!pool->step || step < pool->step)
    pool->step = step;
  pool->step_is_known = round_up(bytes, pool->step / 2) < grown;
}

static uint64_t growth(const struct aq_pool *pool, uint64_t bytes) {
  return round_up(bytes, pool->step ? pool->step : USUAL_STEP);
}

/* True if the pool need not grow, by the sizes alone: what is reserved may be in pieces. */
static bool seems_enough(const struct aq_pool *pool, uint64_t used) {
  return used <= __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);
}

/* It does not come about, or is taken back. */
static void forget_use(const struct aq_pool_ask *ask) {
  if (ask->pool->kind != GRAPH_POOL)
    __atomic_sub_fetch(&ask->pool->used, ask->bytes, __ATOMIC_SEQ_CST);
}

static void note_announced(struct aq_pool_ask *ask, const struct aq_charge *charge) {
  lock(ask->pool);
  ask->pool->announced += charge->bytes;
  unlock(ask->pool);
  ask->generation = charge->generation;
  ask->reserved = charge->bytes;
}

/* Not while the limit is passed already: an earlier holder could not make up for it yet. */
static bool take_right(struct aq_pool_ask *ask) {
  struct aq_share *share = ask->pool->share;
  ask->right = aq_overdraft_take(share);
  if (ask->right && aq_is_over(share, 0))
    aq_pools_reclaim(share);
  if (!ask->right || !aq_is_over(share, 0))
    return ask->right != 0;
  aq_overdraft_give(share, ask->right);
  ask->right = 0;
  return false;
}

/* Near the limit: growth is announced, even where none seems needed. Where there is no room for it,
 * the call is made all the same if the sizes say that it needs none, or if nobody knows yet by how
 * much the pool grows: by one thread of all processes at a time, so that the limit is passed by one
 * step at most, until that is corrected. */
AQ_RARE static bool announce(struct aq_pool_ask *ask) {
  struct aq_pool *pool = ask->pool;
  uint64_t wanted = growth(pool, ask->bytes);
  struct aq_charge charge;
  if (ask->bytes > aq_share_limit(pool->share)) {
    aq_count_refusal(pool->share);
    return false;
  }
  bool enough =
      pool->kind != GRAPH_POOL && seems_enough(pool, __atomic_load_n(&pool->used, __ATOMIC_ACQUIRE));
  bool certain = pool->kind == GRAPH_POOL || (pool->step_is_known && !enough);
  if (certain ? aq_reserve(pool->share, wanted, &charge) : aq_reserve_at_once(pool->share, wanted, &charge)) {
    note_announced(ask, &charge);
    return true;
  }
  if (certain)
    return false;
  if (!take_right(ask)) {
    aq_count_refusal(pool->share);
    return false;
  }
  if (enough)
    return true;
  if (aq_reserve(pool->share, round_up(ask->bytes, LEAST_STEP), &charge)) {
    note_announced(ask, &charge);
    return true;
  }
  aq_overdraft_give(pool->share, ask->right);
  return false;
}

/* Far from the limit nothing is announced for what needs no growth. */
bool aq_pool_enter(struct aq_pool *pool, uint64_t bytes, struct aq_pool_ask *ask) {
  bytes = pool->kind == GRAPH_POOL ? round_up(bytes, LEAST_STEP) : round_up(bytes, GRAIN);
  *ask = (struct aq_pool_ask){.pool = pool, .bytes = bytes};
  if (pool->kind == GRAPH_POOL && bytes == 0)
    return true;
  if (pool->kind != GRAPH_POOL) {
    uint64_t used = __atomic_add_fetch(&pool->used, bytes, __ATOMIC_SEQ_CST);
    if (seems_enough(pool, used) && aq_headroom(pool->share) / NEAR >= growth(pool, bytes))
      return true;
  }
  if (announce(ask))
    return true;
  forget_use(ask);
  return false;
}

static struct aq_charge announced_by(const struct aq_pool_ask *ask) {
  return (struct aq_charge){ask->pool->share, ask->generation, ask->reserved};
}

void aq_pool_cancel(const struct aq_pool_ask *ask) {
  struct aq_charge charge = announced_by(ask);
  forget_use(ask);
  aq_overdraft_give(ask->pool->share, ask->right);
  if (!charge.bytes)
    return;
  lock(ask->pool);
  ask->pool->announced -= charge.bytes;
  unlock(ask->pool);
  aq_cancel(&charge);
}

/* The usual case: nothing was announced, nothing has grown. */
static bool stands_still(const struct aq_pool_ask *ask) {
  uint64_t reserved;
  return !ask->reserved && !ask->right && read_reserved(ask->pool, &reserved) &&
         reserved == __atomic_load_n(&ask->pool->charged, __ATOMIC_ACQUIRE);
}

AQ_RARE static bool settle_growth(const struct aq_pool_ask *ask) {
  struct aq_pool *pool = ask->pool;
  struct aq_charge charge = announced_by(ask);
  uint64_t before = __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);
  bool fits = settle(pool, &charge, ask->right != 0);
  uint64_t after = __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);
  if (ask->reserved && after > before)
    learn_step(pool, ask->bytes, after - before);
  if (!fits) { /* unused room, of no use to this allocation, may make up for it */
    trim(pool);
    aq_pool_refresh(pool);
    fits = !aq_is_over(pool->share, ask->right ? 0 : __atomic_load_n(&pool->announced, __ATOMIC_ACQUIRE));
  }
  if (fits)
    aq_overdraft_give(pool->share, ask->right);
  return fits;
}

bool aq_pool_leave(const struct aq_pool_ask *ask, CUdeviceptr pointer) {
  if (!stands_still(ask) && !settle_growth(ask)) {
    aq_count_refusal(ask->pool->share);
    return false;
  }
  struct aq_record record = {.thing = AQ_POINTER,
                             .key = pointer,
                             .bytes = ask->bytes,
                             .number = ask->pool->number,
                             .share = (uint8_t)ask->pool->share->index};
  return !pointer || aq_note(&record);
}

void aq_pool_undone(const struct aq_pool_ask *ask) {
  forget_use(ask);
  trim(ask->pool);
  aq_pool_refresh(ask->pool);
  aq_overdraft_give(ask->pool->share, ask->right);
}

void aq_pool_freed(uint32_t number, uint64_t bytes, bool at_once) {
  struct aq_pool *pool = numbered(number);
  uint64_t used = __atomic_sub_fetch(&pool->used, bytes, __ATOMIC_SEQ_CST);
  if (pool->kind == DESTROYED_POOL) {
    /* The driver gives its memory back at the latest with the last pointer. */
    if (used == 0)
      retire(pool);
  } else if (at_once) {
    aq_pool_refresh(pool);
  }
}

/* --- which pools there are --- */

struct aq_pool *aq_pool_find(CUmemoryPool handle) {
  struct aq_record record;
  return aq_records_find(AQ_POOL, (uintptr_t)handle, &record) ? numbered(record.number) : NULL;
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
    retire(pool);
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
    retire(pool);
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
  struct aq_pool *pool = numbered(freed.record.number);
  if (pool->share && __atomic_load_n(&pool->used, __ATOMIC_ACQUIRE) < pool->charged) {
    trim(pool); /* it cannot be asked any more afterwards */
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
    retire(pool);
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
    if (holds_more_than_it_uses(numbered(number)))
      aq_pool_refresh(numbered(number));
}

void aq_pools_refresh(void) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++)
    if (numbered(number)->charged > 0)
      aq_pool_refresh(numbered(number));
}

void aq_pools_reclaim(struct aq_share *share) {
  uint32_t count = __atomic_load_n(&pool_count, __ATOMIC_ACQUIRE);
  for (uint32_t number = 1; number <= count; number++) {
    struct aq_pool *pool = numbered(number);
    if (pool->share != share || pool->kind == DESTROYED_POOL || pool->charged == 0)
      continue;
    if (pool->kind == DEVICE_POOL && pool->charged <= pool->used)
      continue;
    trim(pool);
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
