/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of events, each with the record of the bytes that go when it is reached. Whoever asks for one takes
 * it out of the list meanwhile, so that no event is asked for after another thread has destroyed it.
 */
#include "leaving.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "capture.h"
#include "contexts.h"
#include "hooks.h"
#include "pools.h"
#include "state.h"

enum { BLOCK = 4096, STREAM_HANDLES = 2, NO_TIMES = 2 };

struct aq_leaving {
  struct aq_leaving *next;
  CUevent event;
  CUcontext context; /* the event's */
  uint64_t key;      /* of the AQ_LEAVING record */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct aq_leaving *first;
static struct aq_leaving **last = &first;
static struct aq_leaving *unused;
static size_t count;    /* in the list and in hand */
static unsigned asking; /* threads with one in hand */
static unsigned ending; /* threads that end a context */

/* --- the list; under the mutex --- */

static struct aq_leaving *new_entry(void) {
  if (!unused) {
    struct aq_leaving *block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; block != MAP_FAILED && i < BLOCK / sizeof(*block); i++) {
      block[i].next = unused;
      unused = &block[i];
    }
  }
  struct aq_leaving *entry = unused;
  if (entry)
    unused = entry->next;
  return entry;
}

static void append(struct aq_leaving *entry) {
  entry->next = NULL;
  *last = entry;
  last = &entry->next;
}

static struct aq_leaving *unlink_at(struct aq_leaving **link) {
  struct aq_leaving *entry = *link;
  *link = entry->next;
  if (last == &entry->next)
    last = link;
  return entry;
}

static void drop(struct aq_leaving *entry) {
  entry->next = unused;
  unused = entry;
  __atomic_sub_fetch(&count, 1, __ATOMIC_RELAXED);
}

/* --- the driver's part; our own calls --- */

/* The stream's context is current now, `*pushed` if it was not. NULL: there is none. */
static CUcontext enter_context_of(CUstream stream, bool *pushed) {
  CUcontext context = NULL;
  *pushed = false;
  if ((uintptr_t)stream <= STREAM_HANDLES)
    return AQ_REAL(cuCtxGetCurrent) && AQ_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? context : NULL;
  if (!AQ_REAL(cuStreamGetCtx) || !AQ_REAL(cuCtxPushCurrent_v2) || !AQ_REAL(cuCtxPopCurrent_v2) ||
      AQ_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
    return NULL;
  *pushed = AQ_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
  return *pushed ? context : NULL;
}

static bool record_event(CUstream stream, bool per_thread, struct aq_leaving *entry) {
  __typeof__(cuEventRecord) *record = per_thread ? AQ_REAL(cuEventRecord_ptsz) : AQ_REAL(cuEventRecord);
  CUcontext popped;
  bool pushed;
  bool done = false;
  if (!record || !AQ_REAL(cuEventCreate) || !AQ_REAL(cuEventDestroy_v2) || !AQ_REAL(cuEventQuery))
    return false;
  entry->context = enter_context_of(stream, &pushed);
  if (entry->context && AQ_REAL(cuEventCreate)(&entry->event, NO_TIMES) == CUDA_SUCCESS) {
    done = record(entry->event, stream) == CUDA_SUCCESS;
    if (!done)
      AQ_REAL(cuEventDestroy_v2)(entry->event);
  }
  if (pushed)
    AQ_REAL(cuCtxPopCurrent_v2)(&popped);
  entry->context = aq_contexts_owner(entry->context);
  return done;
}

static bool is_reached(const struct aq_leaving *entry) {
  struct aq_own_calls calls = aq_unsafe_calls_begin();
  bool reached = AQ_REAL(cuEventQuery)(entry->event) == CUDA_SUCCESS;
  if (reached)
    AQ_REAL(cuEventDestroy_v2)(entry->event);
  aq_own_calls_end(&calls);
  return reached;
}

/* --- */

/* Nothing, if the memory ended with its context. */
static void give_back(const struct aq_leaving *entry) {
  struct aq_freed freed;
  if (aq_free_begin(AQ_LEAVING, entry->key, &freed))
    aq_free_end(&freed, true);
}

/* One in hand goes into the list, or is done with. */
static void put_away(struct aq_leaving *entry, bool done) {
  pthread_mutex_lock(&mutex);
  if (done)
    drop(entry);
  else
    append(entry);
  pthread_mutex_unlock(&mutex);
}

static bool settle_one(struct aq_leaving *entry) {
  bool reached = is_reached(entry);
  if (reached)
    give_back(entry);
  put_away(entry, reached);
  return reached;
}

/* False: a context is ending. */
static bool begin_asking(void) {
  __atomic_add_fetch(&asking, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&ending, __ATOMIC_SEQ_CST) == 0)
    return true;
  __atomic_sub_fetch(&asking, 1, __ATOMIC_SEQ_CST);
  return false;
}

static void end_asking(void) {
  __atomic_sub_fetch(&asking, 1, __ATOMIC_SEQ_CST);
}

AQ_RARE static void settle_all(void) {
  bool any = false;
  if (!begin_asking())
    return;
  for (size_t left = __atomic_load_n(&count, __ATOMIC_RELAXED); left > 0; left--) {
    pthread_mutex_lock(&mutex);
    struct aq_leaving *entry = first ? unlink_at(&first) : NULL;
    pthread_mutex_unlock(&mutex);
    if (!entry)
      break;
    any |= settle_one(entry);
  }
  end_asking();
  if (any)
    aq_pools_synchronised(); /* an event that was reached is a synchronisation to the driver */
}

void aq_leaving_settle(void) {
  if (__atomic_load_n(&count, __ATOMIC_RELAXED) > 0 && aq_depth == 0)
    settle_all();
}

/* Without an event nobody learns that it is gone: it counts until its context ends. */
void aq_leaving_add(const struct aq_freed *freed, CUstream stream, bool per_thread) {
  static uint64_t keys;
  struct aq_charge charge = {&aq_shares[freed->record.share], freed->generation, freed->record.bytes};
  struct aq_record record = freed->record;
  pthread_mutex_lock(&mutex);
  struct aq_leaving *entry = new_entry();
  if (entry)
    __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&mutex);
  record.thing = AQ_LEAVING;
  record.key = __atomic_add_fetch(&keys, 1, __ATOMIC_RELAXED);
  aq_commit(&charge, &record);
  if (!entry)
    return;
  entry->key = record.key;
  struct aq_own_calls calls = aq_own_calls_begin();
  bool recorded = record_event(stream, per_thread, entry);
  aq_own_calls_end(&calls);
  put_away(entry, !recorded);
  aq_leaving_settle();
}

struct aq_leaving *aq_leaving_take(CUcontext context) {
  struct aq_leaving *taken = NULL;
  if (!context || aq_depth > 0 || __atomic_load_n(&count, __ATOMIC_RELAXED) == 0)
    return NULL;
  __atomic_add_fetch(&ending, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&asking, __ATOMIC_SEQ_CST) > 0)
    sched_yield();
  pthread_mutex_lock(&mutex);
  for (struct aq_leaving **link = &first; *link;) {
    if ((*link)->context != context) {
      link = &(*link)->next;
      continue;
    }
    struct aq_leaving *entry = unlink_at(link);
    entry->next = taken;
    taken = entry;
  }
  pthread_mutex_unlock(&mutex);
  __atomic_sub_fetch(&ending, 1, __ATOMIC_SEQ_CST);
  return taken;
}

void aq_leaving_end(struct aq_leaving *taken, bool ended) {
  while (taken) {
    struct aq_leaving *entry = taken;
    taken = entry->next;
    if (ended) /* all of its streams are done, and the event is gone with it */
      give_back(entry);
    put_away(entry, ended);
  }
}

void aq_leaving_reset(void) {
  mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  first = NULL;
  last = &first;
  unused = NULL;
  count = 0;
  asking = 0;
  ending = 0;
}
