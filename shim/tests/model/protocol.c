/* SPDX-License-Identifier: Apache-2.0
 *
 * The protocol of reservations and slots, explored: the shim's own sources, run by processes that are
 * coroutines here, through all interleavings with at most so many preemptions and kills.
 *
 *   protocol SCENARIO PREEMPTIONS KILLS      prints the number of runs; status 1 with a trace if one fails
 *
 * In every state the driver has given no more than the limit; in the end nothing stays charged, no slot is
 * lost, and a newcomer gets the whole share.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../src/records.c"

#include "books.h"
#include "identity.h"
#include "slot.h"

#include "explore.h"

enum { LIMIT_BYTES = 3, JANITOR = RUNNERS - 1, LEAST_SLOTS = 8 };

struct process {
  uint64_t pid;   /* also tells a dead one's slot from a living one's */
  uint64_t given; /* by the driver */
  struct shard shards[SHARDS];
};

struct scenario {
  const char *name;
  void (*const scripts[RUNNERS])(void); /* the janitor's comes last, by itself */
  void (*prepare)(void);
};

struct aq_share aq_shares[AQ_MAX_SHARES];

static struct process processes[RUNNERS];
static struct aq_quota quota;
static struct aq_ledger *ledger;
static int8_t locks[AQ_SLOTS]; /* owner + 1 */
static const struct scenario *scenario;

static uint64_t given(void) {
  uint64_t sum = 0;
  for (int i = 0; i < RUNNERS; i++)
    sum += processes[i].given;
  return sum;
}

static void any_step(void) {
  if (running == JANITOR)
    return;
  if (given() > LIMIT_BYTES)
    fail("the driver gave more than the limit");
  next_step();
}

void model_step(const volatile void *word) {
  if ((const char *)word >= (const char *)ledger && (const char *)word < (const char *)(ledger + 1))
    any_step();
}

int model_sleep(const struct timespec *wanted, struct timespec *left) {
  (void)wanted;
  (void)left;
  any_step();
  return 0;
}

int model_yield(void) {
  any_step();
  return 0;
}

int model_lock(int fd, int command, struct flock *byte) {
  (void)fd;
  (void)command;
  any_step();
  int8_t *lock = &locks[(uint64_t)byte->l_start - AQ_SLOT_LOCK_BASE];
  if (*lock && *lock != running + 1)
    return -1;
  *lock = byte->l_type == F_UNLCK ? 0 : (int8_t)(running + 1);
  return 0;
}

void aq_identity_self(struct aq_identity *self) {
  *self = (struct aq_identity){processes[running].pid, 1, 1};
}

bool aq_identity_lives(const struct aq_identity *other, uint64_t inode) {
  (void)inode;
  for (int i = 0; i < RUNNERS; i++)
    if ((runners[i].started || i == JANITOR) && !runners[i].ended && processes[i].pid == other->pid)
      return true;
  return false;
}

bool aq_share_is_ledger(const struct aq_share *share, int fd) {
  (void)share;
  return fd >= 0;
}

int aq_share_open_ledger(const struct aq_share *share) {
  return share->fd;
}

/* Each process has a share of its own, and all the same ledger. */
static struct aq_share *share_of(int process) {
  return &aq_shares[process];
}

static bool take(uint64_t bytes, uint64_t pointer) {
  struct aq_charge charge;
  if (!aq_reserve(share_of(running), bytes, &charge))
    return false;
  any_step();
  processes[running].given += bytes;
  any_step();
  const struct aq_record record = {.key = pointer, .thing = AQ_POINTER};
  if (!aq_commit(&charge, &record))
    fail("no room for a record");
  return true;
}

static void give(uint64_t pointer) {
  struct aq_freed freed;
  if (!aq_free_begin(AQ_POINTER, pointer, &freed))
    fail("a record is lost");
  any_step();
  processes[running].given -= freed.record.bytes;
  any_step();
  aq_free_end(&freed, true);
}

/* Takes two thirds, and the last third, and gives them back. */
static void taker(void) {
  if (!aq_slot_claim(share_of(running)))
    fail("no slot");
  bool two = take(2, 16);
  bool one = take(1, 32);
  if (two)
    give(16);
  if (one)
    give(32);
}

/* Comes while others are at it, and goes again. */
static void visitor(void) {
  if (!aq_slot_claim(share_of(running)))
    fail("no slot");
  if (take(2, 16))
    give(16);
}

static void context_maker(void) {
  if (!aq_slot_claim(share_of(running)))
    fail("no slot");
  if (aq_context_reserve(share_of(running))) {
    any_step();
    processes[running].given++;
    any_step();
    processes[running].given--;
    aq_context_cancel(share_of(running));
  }
  if (take(3, 16))
    give(16);
}

/* Measures a process that is gone by then. */
static void late_agent(void) {
  any_step();
  if (ledger->slot[0].pid)
    __atomic_store_n(&ledger->slot[0].overhead_bytes, 2, __ATOMIC_RELAXED);
}

static void sweeper(void) {
  if (aq_slot_claim(share_of(running)))
    aq_slot_sweep(share_of(running));
}

/* After everything: nothing is charged, and the whole share can be had. */
static void janitor(void) {
  struct aq_share *share = share_of(running);
  if (!aq_slot_claim(share))
    fail("no slot is left for a newcomer");
  aq_slot_sweep(share);
  struct aq_view view = aq_view(share, UINT64_MAX, UINT64_MAX);
  if (view.used != 0)
    fail("something stays charged when everybody is gone");
  for (unsigned i = 0; i < LEAST_SLOTS && i < ledger->slots_used; i++)
    if (&ledger->slot[i] != share->slot && (ledger->slot[i].pid || ledger->slot[i].used_bytes))
      fail("a dead process keeps its slot");
  if (!take(LIMIT_BYTES, 16))
    fail("the whole share is not to be had");
}

/* A process that died with memory, a context, and a measured overhead. */
static void with_a_dead_one(void) {
  ledger->slot[0] = (struct aq_slot){.used_bytes = 1,
                                     .generation = 7,
                                     .overhead_bytes = 1,
                                     .contexts = 1,
                                     .measured_contexts = 1,
                                     .pid = 99,
                                     .pidns_inode = 1,
                                     .start_ticks = 1};
  ledger->slots_used = 1;
}

/* The same, and somebody who has been there all the time: no newcomer's slot covers what is left behind. */
static void with_a_dead_one_and_a_witness(void) {
  locks[0] = 1; /* of a process that is about to die */
  with_a_dead_one();
  running = JANITOR;
  memset(shards, 0, sizeof(shards));
  aq_slot_claim(share_of(JANITOR));
  locks[0] = 0;
}

static void empty(void) {
  ledger->slots_used = 0;
}

static const struct scenario scenarios[] = {
    {"two-takers", {taker, taker}, empty},
    {"three-visitors", {visitor, visitor, visitor}, empty},
    {"contexts", {context_maker, context_maker}, empty},
    {"after-a-death", {visitor, visitor}, with_a_dead_one},
    {"witness", {sweeper, sweeper}, with_a_dead_one_and_a_witness},
    {"late-agent", {sweeper, late_agent}, with_a_dead_one_and_a_witness},
    {"sweepers", {sweeper, sweeper, visitor}, with_a_dead_one},
};

/* --- what explore.h wants --- */

static const char *model_name(void) {
  return scenario->name;
}

static bool model_has(int process) {
  return process < JANITOR && scenario->scripts[process];
}

static void model_script(int process) {
  if (process == JANITOR)
    janitor();
  else
    scenario->scripts[process]();
}

static void model_arrive(int process, bool first) {
  if (first)
    memset(shards, 0, sizeof(shards));
  else
    memcpy(shards, processes[process].shards, sizeof(shards));
}

static void model_depart(int process) {
  memcpy(processes[process].shards, shards, sizeof(shards));
}

/* The records of a process that was killed are of no use to anyone. */
static void forget_records(int process) {
  memcpy(shards, processes[process].shards, sizeof(shards));
  aq_records_reset();
  memset(processes[process].shards, 0, sizeof(processes[process].shards));
}

/* What the kernel does at a death: locks and the GPU's memory go. */
static void model_gone(int process, bool killed) {
  for (unsigned i = 0; i < AQ_SLOTS; i++)
    if (locks[i] == process + 1)
      locks[i] = 0;
  processes[process].given = 0;
  if (killed)
    forget_records(process);
}

static void model_reset(void) {
  aq_records_reset();
  memset(locks, 0, sizeof(locks));
  memset(ledger, 0, (size_t)((char *)&ledger->slot[LEAST_SLOTS] - (char *)ledger));
  for (int i = 0; i < RUNNERS; i++) {
    struct process *process = &processes[i];
    process->pid = 100 + (uint64_t)i;
    process->given = 0;
    memset(process->shards, 0, sizeof(process->shards));
    aq_shares[i] = (struct aq_share){.quota = &quota, .ledger = ledger, .index = (unsigned)i, .fd = 3};
  }
  scenario->prepare();
}

static void model_end(void) {
  for (int i = 0; i < JANITOR; i++)
    forget_records(i);
  go_on(JANITOR);
  forget_records(JANITOR);
}

int main(int argc, char **argv) {
  unsigned preemptions = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
  unsigned kills = argc > 3 ? (unsigned)atoi(argv[3]) : 1;
  void *pages = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || preemptions + kills > DEPTH)
    return 2;
  ledger = pages;
  quota.memory_limit_bytes = LIMIT_BYTES;
  quota.context_estimate_bytes = 1;
  for (size_t i = 0; argc > 1 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
    if (strcmp(scenarios[i].name, argv[1]) != 0)
      continue;
    scenario = &scenarios[i];
    explore(preemptions, kills);
    printf("%lu\n", runs);
    return 0;
  }
  return 2;
}
