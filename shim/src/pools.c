/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pool has reserved is one charge, kept as the AQ_RESERVE record of its number.
 *
 * The sum of live sizes tells whether an allocation will make the pool grow; if so, that much is announced
 * first. Afterwards the driver is asked what is reserved now: usually what is charged already, and the shared
 * slot is not touched. It need not even be asked about a block that was live at its last answer and comes
 * again (sightings.h).
 *
 * Two readings may come back in another order than they were made; a ticket drawn before each tells which is
 * newer. Whoever makes a pool grow reads it afterwards, so the newest reading includes all growth.
 */
#include "pools.h"

#include <sched.h>

#include "books.h"
#include "capture.h"
#include "hooks.h"
#include "pool_book.h"
#include "sightings.h"
#include "state.h"

enum { SPINS = 200, NEAR = 32, ANSWER_BITS = 48 };

#define GRAIN      512ULL
#define LEAST_STEP (2ULL << 20)
#define USUAL_STEP (32ULL << 20) /* CUDA pools have been seen to grow by this */

struct aq_sighting_set aq_sightings[1 << AQ_SIGHTING_SET_BITS];

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

/* --- what the driver says --- */

static void begin_asking(struct aq_pool *pool) {
  __atomic_add_fetch(&pool->asked, 1, __ATOMIC_SEQ_CST);
}

static void end_asking(struct aq_pool *pool) {
  __atomic_add_fetch(&pool->answered, 1, __ATOMIC_SEQ_CST);
}

/* Names an answer among those of all pools. */
static uint64_t answer_of(const struct aq_pool *pool, uint64_t count) {
  return (uint64_t)pool->number << ANSWER_BITS ^ count;
}

static bool read_reserved(const struct aq_pool *pool, uint64_t *bytes) {
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  struct aq_own_calls calls = aq_own_calls_begin();
  if (aq_pool_kind_of(pool) == DEVICE_POOL && AQ_REAL(cuMemPoolGetAttribute))
    result = AQ_REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes);
  else if (aq_pool_kind_of(pool) == GRAPH_POOL && AQ_REAL(cuDeviceGetGraphMemAttribute))
    result =
        AQ_REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
  aq_own_calls_end(&calls);
  return result == CUDA_SUCCESS;
}

void aq_pool_trim(struct aq_pool *pool) {
  if (!aq_pool_hold(pool))
    return;
  struct aq_own_calls calls = aq_own_calls_begin();
  if (aq_pool_kind_of(pool) == DEVICE_POOL && AQ_REAL(cuMemPoolTrimTo))
    AQ_REAL(cuMemPoolTrimTo)(pool->handle, 0);
  else if (aq_pool_kind_of(pool) == GRAPH_POOL && AQ_REAL(cuDeviceGraphMemTrim))
    AQ_REAL(cuDeviceGraphMemTrim)(pool->device);
  __atomic_add_fetch(&pool->trims, 1, __ATOMIC_SEQ_CST);
  aq_own_calls_end(&calls);
  aq_pool_let_go(pool);
}

/* --- the charge --- */

/* Under the lock. False: it has grown past what was announced, and the share with it. */
static bool charge_reading(struct aq_pool *pool, struct aq_charge *announced, uint64_t reserved,
                           bool strictly) {
  bool fits = true;
  if (reserved < pool->charged) {
    if (aq_pool_kind_of(pool) == GRAPH_POOL) /* the driver has made room: what was resident may not be */
      __atomic_add_fetch(&pool->trims, 1, __ATOMIC_SEQ_CST);
    /* It may be taken again: the last one lowers it. */
    if (__atomic_load_n(&pool->relying, __ATOMIC_SEQ_CST) > 0)
      return true;
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
  begin_asking(pool);
  uint64_t ticket = __atomic_add_fetch(&pool->tickets, 1, __ATOMIC_SEQ_CST);
  bool held = aq_pool_hold(pool);
  bool known = held && pool->share && read_reserved(pool, &reserved);
  bool fits = true;
  lock(pool);
  __atomic_store_n(&pool->announced, pool->announced - announced->bytes, __ATOMIC_RELAXED);
  if (known && ticket > pool->newest) {
    fits = charge_reading(pool, announced, reserved, strictly);
    __atomic_store_n(&pool->newest, ticket, __ATOMIC_RELEASE);
  }
  if (announced->bytes)
    aq_cancel(announced);
  unlock(pool);
  end_asking(pool);
  if (held)
    aq_pool_let_go(pool);
  return fits;
}

void aq_pool_refresh(struct aq_pool *pool) {
  struct aq_charge nothing = {NULL, 0, 0};
  settle(pool, &nothing, true);
}

/* By how much an allocation makes the pool grow, from how much others did. */
static void learn_step(struct aq_pool *pool, uint64_t bytes, uint64_t grown) {
  uint64_t step = grown & -grown;
  if (aq_pool_kind_of(pool) != DEVICE_POOL || step < LEAST_STEP)
    return;
  uint64_t known = __atomic_load_n(&pool->step, __ATOMIC_RELAXED);
  if (known && known < step)
    step = known;
  __atomic_store_n(&pool->step, step, __ATOMIC_RELAXED);
  __atomic_store_n(&pool->step_is_known, round_up(bytes, step / 2) < grown, __ATOMIC_RELAXED);
}

static uint64_t step_of(const struct aq_pool *pool) {
  uint64_t step = __atomic_load_n(&pool->step, __ATOMIC_RELAXED);
  return step ? step : USUAL_STEP;
}

static uint64_t growth(const struct aq_pool *pool, uint64_t bytes) {
  return round_up(bytes, step_of(pool));
}

/* True if the pool need not grow, by the sizes alone: what is reserved may be in pieces. */
static bool seems_enough(const struct aq_pool *pool, uint64_t used) {
  return used <= __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);
}

/* It does not come about, or is taken back. */
static void forget_use(const struct aq_pool_ask *ask) {
  if (aq_pool_kind_of(ask->pool) != GRAPH_POOL)
    __atomic_sub_fetch(&ask->pool->used, ask->bytes, __ATOMIC_SEQ_CST);
}

static void note_announced(struct aq_pool_ask *ask, const struct aq_charge *charge) {
  lock(ask->pool);
  __atomic_store_n(&ask->pool->announced, ask->pool->announced + charge->bytes, __ATOMIC_RELAXED);
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
static bool announce(struct aq_pool_ask *ask) {
  struct aq_pool *pool = ask->pool;
  uint64_t wanted = growth(pool, ask->bytes);
  struct aq_charge charge;
  if (ask->bytes > aq_share_limit(pool->share)) {
    aq_count_refusal(pool->share);
    return false;
  }
  bool enough = aq_pool_kind_of(pool) != GRAPH_POOL &&
                seems_enough(pool, __atomic_load_n(&pool->used, __ATOMIC_ACQUIRE));
  bool certain = aq_pool_kind_of(pool) == GRAPH_POOL ||
                 (__atomic_load_n(&pool->step_is_known, __ATOMIC_RELAXED) && !enough);
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

/* For a caller whose ask then need not stand in memory, as no other function knows its address. Without a
 * pool: refused. */
AQ_RARE static struct aq_pool_ask announced(struct aq_pool_ask ask) {
  if (!announce(&ask))
    ask.pool = NULL;
  return ask;
}

/* Far from the limit nothing is announced for what needs no growth. */
bool aq_pool_enter(struct aq_pool *pool, uint64_t bytes, struct aq_pool_ask *ask) {
  bool graph = aq_pool_kind_of(pool) == GRAPH_POOL;
  *ask = (struct aq_pool_ask){.pool = pool, .bytes = round_up(bytes, graph ? LEAST_STEP : GRAIN)};
  if (AQ_SELDOM(graph)) {
    if (bytes != 0)
      *ask = announced(*ask);
    return ask->pool != NULL;
  }
  uint64_t used = __atomic_add_fetch(&pool->used, ask->bytes, __ATOMIC_SEQ_CST);
  if (AQ_USUALLY(seems_enough(pool, used) && aq_headroom(pool->share) / NEAR >= ask->bytes + step_of(pool)))
    return true;
  *ask = announced(*ask);
  if (ask->pool)
    return true;
  __atomic_sub_fetch(&pool->used, round_up(bytes, GRAIN), __ATOMIC_SEQ_CST);
  return false;
}

/* Announced first, looked at afterwards: either we see the trim, or whoever lowers the charge sees us. */
bool aq_pool_rely(struct aq_pool *pool, uint32_t trims, struct aq_pool_ask *ask) {
  *ask = (struct aq_pool_ask){.pool = pool, .relies = true};
  __atomic_add_fetch(&pool->relying, 1, __ATOMIC_SEQ_CST);
  if (aq_pool_trims(pool) == trims)
    return true;
  __atomic_sub_fetch(&pool->relying, 1, __ATOMIC_SEQ_CST);
  return false;
}

static void rely_no_more(const struct aq_pool_ask *ask) {
  if (ask->relies)
    __atomic_sub_fetch(&ask->pool->relying, 1, __ATOMIC_SEQ_CST);
}

static struct aq_charge announced_by(const struct aq_pool_ask *ask) {
  return (struct aq_charge){ask->pool->share, ask->generation, ask->reserved};
}

void aq_pool_cancel(const struct aq_pool_ask *ask) {
  struct aq_charge charge = announced_by(ask);
  forget_use(ask);
  rely_no_more(ask);
  aq_overdraft_give(ask->pool->share, ask->right);
  if (ask->relies)
    aq_pool_refresh(ask->pool);
  if (!charge.bytes)
    return;
  lock(ask->pool);
  __atomic_store_n(&ask->pool->announced, ask->pool->announced - charge.bytes, __ATOMIC_RELAXED);
  unlock(ask->pool);
  aq_cancel(&charge);
}

/* Somebody may have read what is reserved and not entered it yet: the charge may be about to be what it was
 * before that. After an allocation: whoever begins to read later sees it. */
static bool is_being_read(const struct aq_pool *pool) {
  return __atomic_load_n(&pool->tickets, __ATOMIC_SEQ_CST) !=
         __atomic_load_n(&pool->newest, __ATOMIC_ACQUIRE);
}

/* The driver still says what is charged. */
static bool is_as_charged(struct aq_pool *pool) {
  uint64_t reserved;
  begin_asking(pool);
  bool same = !is_being_read(pool) && read_reserved(pool, &reserved) &&
              reserved == __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);
  end_asking(pool);
  return same;
}

/* It was live when the driver last answered, and nobody has asked since. After an allocation: whoever begins
 * to ask later sees what it took. */
static bool was_seen(const struct aq_pool *pool, CUdeviceptr pointer, uint64_t bytes) {
  uint64_t asked = __atomic_load_n(&pool->asked, __ATOMIC_SEQ_CST);
  return aq_sighting_holds(pointer, bytes, answer_of(pool, asked));
}

/* Before the driver frees it: if all is answered, it was live at the last answer. */
void aq_pool_parting(uint32_t number, CUdeviceptr pointer, uint64_t bytes) {
  struct aq_pool *pool = aq_pool_numbered(number);
  uint64_t answered = __atomic_load_n(&pool->answered, __ATOMIC_SEQ_CST);
  if (AQ_USUALLY(__atomic_load_n(&pool->asked, __ATOMIC_SEQ_CST) == answered))
    aq_sighting_keep(pointer, bytes, answer_of(pool, answered));
}

/* The usual case: nothing was announced, nothing has grown. */
static bool stands_still(const struct aq_pool_ask *ask, CUdeviceptr pointer) {
  return !ask->reserved && !ask->right &&
         (AQ_USUALLY(was_seen(ask->pool, pointer, ask->bytes)) || is_as_charged(ask->pool));
}

AQ_RARE static bool settle_growth(struct aq_pool_ask ask) {
  struct aq_pool *pool = ask.pool;
  struct aq_charge charge = announced_by(&ask);
  uint64_t before = __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);
  bool fits = settle(pool, &charge, ask.right != 0);
  uint64_t after = __atomic_load_n(&pool->charged, __ATOMIC_ACQUIRE);
  if (ask.reserved && after > before)
    learn_step(pool, ask.bytes, after - before);
  if (!fits) { /* unused room, of no use to this allocation, may make up for it */
    aq_pool_trim(pool);
    aq_pool_refresh(pool);
    fits = !aq_is_over(pool->share, ask.right ? 0 : __atomic_load_n(&pool->announced, __ATOMIC_ACQUIRE));
  }
  if (fits)
    aq_overdraft_give(pool->share, ask.right);
  return fits;
}

bool aq_pool_leave(const struct aq_pool_ask *ask, CUdeviceptr pointer) {
  rely_no_more(ask);
  if (!stands_still(ask, pointer) && !settle_growth(*ask)) {
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
  aq_pool_trim(ask->pool);
  aq_pool_refresh(ask->pool);
  aq_overdraft_give(ask->pool->share, ask->right);
}

void aq_pool_freed(uint32_t number, uint64_t bytes, bool at_once) {
  struct aq_pool *pool = aq_pool_numbered(number);
  uint64_t used = __atomic_sub_fetch(&pool->used, bytes, __ATOMIC_SEQ_CST);
  if (aq_pool_kind_of(pool) == DESTROYED_POOL) {
    /* The driver gives its memory back at the latest with the last pointer. */
    if (used == 0)
      aq_pool_retire(pool);
  } else if (at_once) {
    aq_pool_refresh(pool);
  }
}
