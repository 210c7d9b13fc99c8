/* SPDX-License-Identifier: Apache-2.0
 *
 * When the driver need not be asked how far a pool has grown, explored: the shim's own source, run by threads
 * that are coroutines here.
 *
 *   pools SCENARIO PREEMPTIONS      prints the number of runs; status 1 with a trace if one fails
 *
 * The driver here does its worst: it takes back unseen what is free, and a block comes where its thread wants
 * it. Whenever no thread is in the middle of an allocation, as much is charged as the pool has reserved.
 */
#include <stdlib.h>
#include <string.h>

#include "../../src/pools.c"

#include "explore.h"

enum { NUMBER = 1, PLACES = 4, ANNOUNCED = 1 };

#define STEP  LEAST_STEP
#define FIRST (1ULL << 40)

struct scenario {
  const char *name;
  void (*const scripts[RUNNERS])(void);
};

static const struct aq_quota quota = {.flags = AQ_FLAG_UNLIMITED};
static struct aq_share share = {.quota = &quota};
static struct aq_pool pool;
static uint64_t entered; /* charged in the books */
static bool there[PLACES];
static bool live[PLACES];
static unsigned taking; /* threads to which the driver has given a block, and which are not done */
static const struct scenario *scenario;

/* --- the driver --- */

static uint64_t reserved(void) {
  uint64_t sum = 0;
  for (int at = 0; at < PLACES; at++)
    sum += there[at] ? STEP : 0;
  return sum;
}

static void any_step(void) {
  if (taking == 0 && entered < reserved())
    fail("the pool has grown unseen");
  next_step();
}

static void take_back(void) {
  for (int at = 0; at < PLACES; at++)
    there[at] &= live[at];
}

static CUresult get_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
  (void)handle;
  (void)attribute;
  *(uint64_t *)value = reserved();
  any_step();
  return CUDA_SUCCESS;
}

void *aq_resolve(enum aq_id id) {
  return id == AQ_ID_cuMemPoolGetAttribute ? (void *)get_attribute : NULL;
}

/* --- the books: room for all --- */

void *aq_real_address[AQ_COUNT];

bool aq_reserve(struct aq_share *of, uint64_t bytes, struct aq_charge *charge) {
  *charge = (struct aq_charge){of, ANNOUNCED, bytes};
  return true;
}

bool aq_reserve_at_once(struct aq_share *of, uint64_t bytes, struct aq_charge *charge) {
  return aq_reserve(of, bytes, charge);
}

void aq_force(struct aq_share *of, uint64_t bytes, struct aq_charge *charge) {
  aq_reserve(of, bytes, charge);
}

void aq_charge_into(const struct aq_charge *charge, enum aq_thing thing, uint64_t key) {
  (void)thing;
  (void)key;
  entered += charge->bytes;
}

void aq_give_from(struct aq_share *of, enum aq_thing thing, uint64_t key, uint64_t bytes) {
  (void)of;
  (void)thing;
  (void)key;
  entered -= bytes;
}

void aq_cancel(const struct aq_charge *charge) {
  (void)charge;
}

bool aq_note(const struct aq_record *record) {
  return record->key != 0;
}

uint64_t aq_headroom(const struct aq_share *of) {
  (void)of;
  return UINT64_MAX;
}

bool aq_is_over(const struct aq_share *of, uint64_t slack) {
  (void)of;
  (void)slack;
  return false;
}

uint64_t aq_overdraft_take(struct aq_share *of) {
  (void)of;
  return 0;
}

void aq_overdraft_give(struct aq_share *of, uint64_t right) {
  (void)of;
  (void)right;
}

void aq_count_refusal(struct aq_share *of) {
  (void)of;
  fail("refused");
}

struct aq_own_calls aq_own_calls_begin(void) {
  return (struct aq_own_calls){false, 0};
}

void aq_own_calls_end(const struct aq_own_calls *calls) {
  (void)calls;
}

struct aq_pool *aq_pool_numbered(uint32_t number) {
  return number == NUMBER ? &pool : NULL;
}

uint32_t aq_pool_trims(const struct aq_pool *of) {
  return of->trims;
}

void aq_pool_retire(struct aq_pool *of) {
  (void)of;
}

void aq_pools_reclaim(struct aq_share *of) {
  (void)of;
}

/* --- steps: where threads look at what others change --- */

void model_step(const volatile void *word) {
  const char *at = (const char *)word;
  bool of_pool = word == &pool.asked || word == &pool.answered || word == &pool.tickets ||
                 word == &pool.newest || word == &pool.charged;
  if (of_pool || (at >= (const char *)aq_sightings && at < (const char *)aq_sightings + sizeof(aq_sightings)))
    any_step();
}

int model_yield(void) {
  stuck = true;
  any_step();
  return 0;
}

/* --- what threads do --- */

static CUdeviceptr address(int at) {
  return FIRST + (uint64_t)at * STEP;
}

static void take(int at) {
  struct aq_pool_ask ask;
  if (!aq_pool_enter(&pool, STEP, &ask))
    fail("refused");
  taking++;
  there[at] = live[at] = true;
  any_step();
  if (!aq_pool_leave(&ask, address(at)))
    fail("not kept");
  taking--;
}

/* `back`: the driver takes the block back as soon as it is free. */
static void give(int at, bool back) {
  aq_pool_parting(NUMBER, address(at), STEP);
  any_step();
  live[at] = false;
  there[at] = !back;
  any_step();
  aq_pool_freed(NUMBER, STEP, false);
  any_step();
}

static void one(void) {
  take(0);
  give(0, true);
  take(0);
}

static void other(void) {
  take(1);
  give(1, true);
  take(1);
}

static void keeper(void) {
  take(1);
  give(1, false);
}

static void synchroniser(void) {
  take_back();
  aq_pool_refresh(&pool);
}

static void reclaimer(void) {
  take_back();
  any_step();
  take_back();
}

static const struct scenario scenarios[] = {
    {"two", {one, other}},
    {"beside", {one, keeper}},
    {"synchronised", {one, synchroniser}},
    {"unseen", {one, keeper, reclaimer}},
    {"all", {one, keeper, synchroniser}},
};

/* --- what explore.h wants --- */

static const char *model_name(void) {
  return scenario->name;
}

static bool model_has(int thread) {
  return scenario->scripts[thread];
}

static void model_script(int thread) {
  scenario->scripts[thread]();
}

static void model_gone(int thread, bool killed) {
  (void)thread;
  (void)killed;
}

static void model_arrive(int thread, bool first_time) {
  (void)thread;
  (void)first_time;
}

static void model_depart(int thread) {
  (void)thread;
}

static void model_reset(void) {
  pool =
      (struct aq_pool){.number = NUMBER, .handle = (CUmemoryPool)&pool, .share = &share, .kind = DEVICE_POOL};
  memset(aq_sightings, 0, sizeof(aq_sightings));
  memset(there, 0, sizeof(there));
  memset(live, 0, sizeof(live));
  entered = 0;
  taking = 0;
}

static void model_end(void) {
  if (entered != pool.charged)
    fail("the books do not say what the pool says");
  if (entered < reserved())
    fail("the pool has grown unseen");
}

int main(int argc, char **argv) {
  for (size_t i = 0; argc > 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
    if (strcmp(scenarios[i].name, argv[1]) != 0)
      continue;
    scenario = &scenarios[i];
    explore((unsigned)atoi(argv[2]), 0);
    printf("%lu\n", runs);
    return 0;
  }
  return 2;
}
