/* SPDX-License-Identifier: Apache-2.0
 *
 * Sharded open-addressing tables with linear probing and backward-shift deletion: no
 * tombstones, cost flat in the number of live records. Memory comes from mmap, so that a
 * program's allocator is never entered from a hook.
 */
#include "records.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#include "hot.h"

enum { SHARD_BITS = 6, SHARDS = 1 << SHARD_BITS, FIRST_CAPACITY = 128, SPINS = 200 };

struct shard {
  unsigned char locked;
  uint32_t count;
  uint32_t capacity; /* a power of two, or 0 */
  struct aq_record *records;
  uint64_t total[AQ_MAX_SHARES];
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];

#define CHARGED                                                                                              \
  (1U << AQ_POINTER | 1U << AQ_LEAVING | 1U << AQ_ARRAY | 1U << AQ_MIPMAP | 1U << AQ_HANDLE |                \
   1U << AQ_MEMORY | 1U << AQ_RESERVE | 1U << AQ_LIMIT)

/* The bytes of a record that count by themselves. */
static uint64_t charged(const struct aq_record *record) {
  bool pooled = record->thing == AQ_POINTER && record->number != 0;
  return CHARGED >> record->thing & 1 && !pooled ? record->bytes : 0;
}

static uint64_t hash_of(enum aq_thing thing, uint64_t key) {
  return ((key >> 8 ^ key) + thing) * 0x9e3779b97f4a7c15ULL;
}

static struct shard *shard_of(uint64_t hash) {
  return &shards[hash >> (64 - SHARD_BITS)];
}

static uint32_t home(const struct shard *shard, uint64_t hash) {
  return (uint32_t)(hash >> 24) & (shard->capacity - 1);
}

AQ_RARE static void wait_for(struct shard *shard) {
  for (unsigned spins = 0; __atomic_exchange_n(&shard->locked, 1, __ATOMIC_ACQUIRE); spins++)
    if (spins > SPINS)
      sched_yield();
}

static void lock(struct shard *shard) {
  if (AQ_SELDOM(__atomic_exchange_n(&shard->locked, 1, __ATOMIC_ACQUIRE)))
    wait_for(shard);
}

static void unlock(struct shard *shard) {
  __atomic_store_n(&shard->locked, 0, __ATOMIC_RELEASE);
}

/* Where it is, or would be put, in a shard that has a table. */
static struct aq_record *place(const struct shard *shard, enum aq_thing thing, uint64_t key, uint64_t hash) {
  uint32_t i = home(shard, hash);
  while (shard->records[i].key != 0 && (shard->records[i].key != key || shard->records[i].thing != thing))
    i = (i + 1) & (shard->capacity - 1);
  return &shard->records[i];
}

/* NULL if there is none. */
static struct aq_record *find(const struct shard *shard, enum aq_thing thing, uint64_t key, uint64_t hash) {
  struct aq_record *at = shard->capacity ? place(shard, thing, key, hash) : NULL;
  return at && at->key != 0 ? at : NULL;
}

static void erase(struct shard *shard, uint32_t hole) {
  uint32_t mask = shard->capacity - 1;
  shard->count--;
  for (uint32_t i = (hole + 1) & mask; shard->records[i].key != 0; i = (i + 1) & mask) {
    uint32_t wanted = home(shard, hash_of(shard->records[i].thing, shard->records[i].key));
    if (((i - wanted) & mask) < ((i - hole) & mask))
      continue; /* its home lies behind the hole */
    shard->records[hole] = shard->records[i];
    hole = i;
  }
  shard->records[hole].key = 0;
}

AQ_RARE static bool grow(struct shard *shard) {
  uint32_t old_capacity = shard->capacity;
  struct aq_record *old = shard->records;
  uint32_t capacity = old_capacity ? old_capacity * 2 : FIRST_CAPACITY;
  void *fresh =
      mmap(NULL, capacity * sizeof(*old), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED)
    return false;
  shard->records = fresh;
  shard->capacity = capacity;
  for (uint32_t i = 0; i < old_capacity; i++)
    if (old[i].key != 0)
      *place(shard, old[i].thing, old[i].key, hash_of(old[i].thing, old[i].key)) = old[i];
  if (old)
    munmap(old, old_capacity * sizeof(*old));
  return true;
}

/* `one`: of its holders, if it has several. */
static inline bool take_out(const struct aq_share *shares, enum aq_thing thing, uint64_t key, bool one,
                            struct aq_record *record, uint64_t *generation) {
  uint64_t hash = hash_of(thing, key);
  struct shard *shard = shard_of(hash);
  lock(shard);
  struct aq_record *found = find(shard, thing, key, hash);
  if (found) {
    *record = *found;
    *generation = shares[found->share].generation;
  }
  if (found && one && found->count > 1) {
    found->count--;
  } else if (found) {
    shard->total[found->share] -= charged(found);
    erase(shard, (uint32_t)(found - shard->records));
  }
  unlock(shard);
  return found != NULL;
}

bool aq_records_take(const struct aq_share *shares, enum aq_thing thing, uint64_t key,
                     struct aq_record *record, uint64_t *generation) {
  return take_out(shares, thing, key, false, record, generation);
}

bool aq_records_let_go(const struct aq_share *shares, enum aq_thing thing, uint64_t key,
                       struct aq_record *record, uint64_t *generation) {
  return take_out(shares, thing, key, true, record, generation);
}

bool aq_records_find(enum aq_thing thing, uint64_t key, struct aq_record *record) {
  uint64_t hash = hash_of(thing, key);
  struct shard *shard = shard_of(hash);
  lock(shard);
  const struct aq_record *found = find(shard, thing, key, hash);
  if (found)
    *record = *found;
  unlock(shard);
  return found != NULL;
}

bool aq_records_change(const struct aq_share *shares, enum aq_thing thing, uint64_t key, uint64_t bytes,
                       int count, struct aq_record *record, uint64_t *generation) {
  uint64_t hash = hash_of(thing, key);
  struct shard *shard = shard_of(hash);
  lock(shard);
  struct aq_record *found = find(shard, thing, key, hash);
  if (found) {
    shard->total[found->share] -= charged(found);
    found->bytes += bytes;
    found->count = (uint16_t)(found->count + count);
    shard->total[found->share] += charged(found);
    *record = *found;
    *generation = shares[found->share].generation;
  }
  unlock(shard);
  return found != NULL;
}

typedef bool (*is_wanted)(const struct aq_record *record, const void *what);

static bool find_any(enum aq_thing thing, is_wanted wanted, const void *what, struct aq_record *record) {
  bool found = false;
  for (struct shard *shard = shards; shard < shards + SHARDS && !found; shard++) {
    lock(shard);
    for (uint32_t i = 0; i < shard->capacity && !found; i++) {
      const struct aq_record *at = &shard->records[i];
      found = at->key != 0 && at->thing == thing && wanted(at, what);
      if (found)
        *record = *at;
    }
    unlock(shard);
  }
  return found;
}

static bool is_around(const struct aq_record *record, const void *what) {
  return *(const uint64_t *)what - record->key < record->bytes;
}

bool aq_records_find_around(enum aq_thing thing, uint64_t address, struct aq_record *record) {
  return (aq_records_find(thing, address, record)) || find_any(thing, is_around, &address, record);
}

static bool belongs(const struct aq_record *record, const void *what) {
  return record->context == (CUcontext)what;
}

bool aq_records_find_of(enum aq_thing thing, CUcontext context, struct aq_record *record) {
  return find_any(thing, belongs, context, record);
}

/* Field by field: what was just written in small pieces is not read back in large ones, for which the
 * processor would have to wait. */
static inline void store(struct aq_record *at, const struct aq_record *record) {
  at->key = record->key;
  at->bytes = record->bytes;
  at->context = record->context;
  at->number = record->number;
  at->count = record->count;
  at->share = record->share;
  at->thing = record->thing;
}

/* Room for one more, at most three quarters full. */
static bool has_room(struct shard *shard) {
  return (shard->count + 1) * 4 <= shard->capacity * 3 || grow(shard);
}

bool aq_records_put(const struct aq_share *shares, const struct aq_record *record, struct aq_record *replaced,
                    uint64_t *generation) {
  uint64_t hash = hash_of(record->thing, record->key);
  struct shard *shard = shard_of(hash);
  replaced->key = 0;
  lock(shard);
  bool stored = has_room(shard);
  if (stored) {
    struct aq_record *at = place(shard, record->thing, record->key, hash);
    if (AQ_USUALLY(at->key == 0)) {
      shard->count++;
    } else {
      *replaced = *at;
      replaced->bytes = charged(at);
      shard->total[at->share] -= replaced->bytes;
    }
    store(at, record);
    shard->total[record->share] += charged(record);
  }
  *generation = shares[record->share].generation;
  unlock(shard);
  return stored;
}

void aq_records_lock_all(void) {
  for (int i = 0; i < SHARDS; i++)
    lock(&shards[i]);
}

void aq_records_unlock_all(void) {
  for (int i = SHARDS; i-- > 0;)
    unlock(&shards[i]);
}

static bool is_of(const struct aq_record *record, const struct aq_share *share, CUcontext context) {
  return record->key != 0 && record->context == context && record->share == share->index &&
         record->thing != AQ_GREEN && record->thing != AQ_ALIAS;
}

void aq_records_move(const struct aq_share *share, CUcontext context, CUcontext other) {
  for (struct shard *shard = shards; shard < shards + SHARDS; shard++) {
    lock(shard);
    for (uint32_t i = 0; i < shard->capacity; i++)
      if (is_of(&shard->records[i], share, context))
        shard->records[i].context = other;
    unlock(shard);
  }
}

static void drop_from(struct shard *shard, const struct aq_share *share, CUcontext context,
                      struct aq_dropped *dropped) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < shard->capacity;) {
    if (!is_of(&shard->records[i], share, context)) {
      i++;
      continue;
    }
    bytes += charged(&shard->records[i]);
    dropped->managed_bytes += aq_record_managed(&shard->records[i]);
    if (shard->records[i].thing == AQ_CODE)
      dropped->code_bytes += shard->records[i].bytes;
    erase(shard, i); /* may move another record here: look again */
  }
  shard->total[share->index] -= bytes;
  dropped->bytes += bytes;
}

void aq_records_drop_context(const struct aq_share *share, CUcontext context, struct aq_dropped *dropped,
                             uint64_t *generation) {
  *dropped = (struct aq_dropped){0, 0, 0};
  aq_records_lock_all();
  for (struct shard *shard = shards; shard < shards + SHARDS; shard++)
    drop_from(shard, share, context, dropped);
  *generation = share->generation;
  aq_records_unlock_all();
}

uint64_t aq_records_managed(const struct aq_share *share) {
  uint64_t bytes = 0;
  for (struct shard *shard = shards; shard < shards + SHARDS; shard++)
    for (uint32_t i = 0; i < shard->capacity; i++)
      if (shard->records[i].key != 0 && shard->records[i].share == share->index)
        bytes += aq_record_managed(&shard->records[i]);
  return bytes;
}

uint64_t aq_records_total(unsigned share) {
  uint64_t total = 0;
  for (int i = 0; i < SHARDS; i++)
    total += shards[i].total[share];
  return total;
}

void aq_records_reset(void) {
  for (struct shard *shard = shards; shard < shards + SHARDS; shard++)
    if (shard->records)
      munmap(shard->records, shard->capacity * sizeof(*shard->records));
  memset(shards, 0, sizeof(shards));
}
