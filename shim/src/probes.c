/* SPDX-License-Identifier: Apache-2.0
 *
 * A fixed number of places for event pairs. A place is one thread's while it is busy, and everybody's
 * under the lock else.
 */
#include "probes.h"

#include <pthread.h>
#include <string.h>

#include "budget.h"
#include "capture.h"
#include "hooks.h"
#include "streams.h"

enum { PROBES = 64 };

#define MOST_GAP 0.0625F /* of a sample that is surely not too low */

enum state { EMPTY, IDLE, BUSY, PENDING };

struct aq_probe {
  enum state state;
  bool dropped; /* while busy: its context has ended */
  bool per_thread;
  CUcontext context; /* of the events; NULL: there are none */
  CUevent start;
  CUevent end;
  struct aq_share *share;
  struct aq_price *price;
  uint64_t key;
  uint64_t began_ns; /* when the program was about to launch */
  uint64_t drawn_ns; /* what it had drawn then */
  bool given_up;
  float gap_ms; /* the stream was idle: the GPU waited this long for the launch */
};

static struct aq_probe probes[PROBES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned pending;
static uint64_t seen_ns[AQ_MAX_SHARES]; /* drawn when the last measurement began */
static bool stalled;                    /* nothing has come to its end since somebody gave up */

static bool can_measure(void) {
  return AQ_REAL(cuEventCreate) && AQ_REAL(cuEventDestroy_v2) && AQ_REAL(cuEventRecord) &&
         AQ_REAL(cuEventQuery) && AQ_REAL(cuEventElapsedTime) && AQ_REAL(cuCtxGetCurrent);
}

/* Takes a place: best with events of the context, else an empty one, else one whose events must go. */
static struct aq_probe *claim(CUcontext context) {
  struct aq_probe *chosen = NULL;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < PROBES; i++) {
    struct aq_probe *probe = &probes[i];
    bool fits = probe->state == IDLE && probe->context == context;
    if (fits || (probe->state == EMPTY && (!chosen || chosen->state == IDLE)) ||
        (probe->state == IDLE && !chosen))
      chosen = probe;
    if (fits)
      break;
  }
  if (chosen) {
    chosen->state = BUSY;
    chosen->dropped = false;
  }
  pthread_mutex_unlock(&lock);
  return chosen;
}

static void destroy(CUevent start, CUevent end) {
  if (start)
    AQ_REAL(cuEventDestroy_v2)(start);
  if (end)
    AQ_REAL(cuEventDestroy_v2)(end);
}

/* Gives a busy place back; `next` EMPTY: its events are no good, or gone. */
static void release(struct aq_probe *probe, enum state next) {
  pthread_mutex_lock(&lock);
  if (probe->dropped || next == EMPTY) {
    probe->context = NULL;
    next = EMPTY;
  }
  probe->state = next;
  pthread_mutex_unlock(&lock);
}

/* In the context, which need not be the current one. */
static bool make_events(struct aq_probe *probe, CUcontext context, bool current) {
  CUcontext popped;
  if (!current && (!AQ_REAL(cuCtxPushCurrent_v2) || !AQ_REAL(cuCtxPopCurrent_v2) ||
                   AQ_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS))
    return false;
  probe->start = probe->end = NULL;
  bool made = AQ_REAL(cuEventCreate)(&probe->start, 0) == CUDA_SUCCESS &&
              AQ_REAL(cuEventCreate)(&probe->end, 0) == CUDA_SUCCESS;
  if (!made)
    destroy(probe->start, NULL);
  if (!current)
    AQ_REAL(cuCtxPopCurrent_v2)(&popped);
  return made;
}

/* NULL: unknown. */
static CUcontext context_of(CUstream stream, bool *current) {
  CUcontext here = NULL;
  CUcontext context = NULL;
  if (AQ_REAL(cuCtxGetCurrent)(&here) != CUDA_SUCCESS)
    here = NULL;
  if ((uintptr_t)stream > AQ_STREAM_HANDLES && AQ_REAL(cuStreamGetCtx) &&
      AQ_REAL(cuStreamGetCtx)(stream, &context) == CUDA_SUCCESS && context) {
    *current = context == here;
    return context;
  }
  *current = true;
  return here;
}

static CUresult record(const struct aq_probe *probe, CUevent event, CUstream stream) {
  if (!probe->per_thread)
    return AQ_REAL(cuEventRecord)(event, stream);
  return AQ_REAL(cuEventRecord_ptsz) ? AQ_REAL(cuEventRecord_ptsz)(event, stream) : CUDA_ERROR_NOT_SUPPORTED;
}

static struct aq_probe *begin(CUstream stream, bool per_thread) {
  bool current = true;
  CUcontext context = context_of(stream, &current);
  struct aq_probe *probe = context ? claim(context) : NULL;
  if (!probe)
    return NULL;
  probe->per_thread = per_thread;
  if (probe->context && probe->context != context) {
    destroy(probe->start, probe->end);
    probe->context = NULL;
  }
  if (!probe->context && make_events(probe, context, current))
    probe->context = context;
  if (probe->context && record(probe, probe->start, stream) == CUDA_SUCCESS)
    return probe;
  if (probe->context)
    destroy(probe->start, probe->end);
  release(probe, EMPTY);
  return NULL;
}

static uint64_t drawn(const struct aq_share *share) {
  return __atomic_load_n(&aq_purses[share->index].drawn_ns, __ATOMIC_RELAXED);
}

struct aq_probe *aq_probe_begin(struct aq_share *share, struct aq_price *price, uint64_t key, CUstream stream,
                                bool per_thread) {
  bool legacy =
      (uintptr_t)stream <= 1 && !per_thread; /* the driver may take a record for part of a capture */
  if (!can_measure() || (legacy && aq_captures_run()))
    return NULL;
  struct aq_own_calls calls = aq_unsafe_calls_begin();
  struct aq_probe *probe = begin(stream, per_thread);
  aq_own_calls_end(&calls);
  if (!probe)
    return NULL;
  probe->share = share;
  probe->price = price;
  probe->key = key;
  aq_price_pending(price, key, 1);
  probe->drawn_ns = drawn(share);
  probe->given_up = false;
  __atomic_store_n(&seen_ns[share->index], probe->drawn_ns, __ATOMIC_RELAXED);
  probe->began_ns = aq_clock_ns();
  return probe;
}

void aq_probe_end(struct aq_probe *probe, CUstream stream, bool launched) {
  uint64_t took_ns = aq_clock_ns() - probe->began_ns;
  struct aq_own_calls calls = aq_unsafe_calls_begin();
  bool was_idle = launched && AQ_REAL(cuEventQuery)(probe->start) == CUDA_SUCCESS;
  probe->gap_ms = was_idle ? (float)took_ns / 1e6F : 0;
  bool measured = launched && record(probe, probe->end, stream) == CUDA_SUCCESS;
  aq_own_calls_end(&calls);
  if (measured)
    __atomic_add_fetch(&pending, 1, __ATOMIC_RELAXED);
  else
    aq_price_pending(probe->price, probe->key, -1);
  release(probe, measured ? PENDING : IDLE);
}

/* Of a short kernel on an idle GPU the launch itself would be most. */
static float without_gap(const struct aq_probe *probe, float ms) {
  return ms - probe->gap_ms > ms / 4 ? ms - probe->gap_ms : ms / 4;
}

static void settle(const struct aq_probe *probe, float ms) {
  int64_t owed;
  const struct aq_sample sample = {.ms = without_gap(probe, ms),
                                   .sound_ms = probe->gap_ms <= ms * MOST_GAP ? ms : 0,
                                   .correction = aq_budget_correction(probe->share),
                                   .at_ns = aq_clock_ns()};
  aq_price_learn(probe->price, probe->key, &sample, &owed);
  if (owed > 0)
    aq_budget_charge(probe->share, (uint64_t)owed);
  else if (owed < 0)
    aq_purse_refund(probe->share, (uint64_t)-owed);
}

/* A busy place: its events are asked. */
static void ask(struct aq_probe *probe) {
  float ms = 0;
  struct aq_own_calls calls = aq_unsafe_calls_begin();
  CUresult result = AQ_REAL(cuEventQuery)(probe->end);
  if (result == CUDA_SUCCESS)
    result = AQ_REAL(cuEventElapsedTime)(&ms, probe->start, probe->end);
  aq_own_calls_end(&calls);
  if (result == CUDA_ERROR_NOT_READY) {
    release(probe, PENDING);
    return;
  }
  if (result == CUDA_SUCCESS)
    settle(probe, ms);
  __atomic_store_n(&stalled, false, __ATOMIC_RELAXED);
  aq_price_pending(probe->price, probe->key, -1);
  __atomic_sub_fetch(&pending, 1, __ATOMIC_RELAXED);
  release(probe, result == CUDA_SUCCESS ? IDLE : EMPTY);
}

/* The next one from `*place` on that waits to be asked; it is ours then. NULL: there is none. */
static struct aq_probe *next_pending(int *place) {
  struct aq_probe *found = NULL;
  pthread_mutex_lock(&lock);
  for (; *place < PROBES && !found; (*place)++)
    if (probes[*place].state == PENDING)
      found = &probes[*place];
  if (found) {
    found->state = BUSY;
    found->dropped = false;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

void aq_probes_poll(void) {
  struct aq_probe *probe;
  int place = 0;
  while (__atomic_load_n(&pending, __ATOMIC_RELAXED) > 0 && (probe = next_pending(&place)))
    ask(probe);
}

uint64_t aq_probes_behind(const struct aq_share *share) {
  uint64_t now = drawn(share);
  uint64_t most = 0;
  if (__atomic_load_n(&pending, __ATOMIC_RELAXED) == 0 || __atomic_load_n(&stalled, __ATOMIC_RELAXED))
    return 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < PROBES; i++) {
    const struct aq_probe *probe = &probes[i];
    if (probe->state == PENDING && probe->share == share && !probe->given_up && now - probe->drawn_ns > most)
      most = now - probe->drawn_ns;
  }
  pthread_mutex_unlock(&lock);
  return most;
}

uint64_t aq_probes_unseen(const struct aq_share *share) {
  return drawn(share) - __atomic_load_n(&seen_ns[share->index], __ATOMIC_RELAXED);
}

void aq_probes_give_up(const struct aq_share *share) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < PROBES; i++)
    if (probes[i].state == PENDING && probes[i].share == share)
      probes[i].given_up = true;
  pthread_mutex_unlock(&lock);
  __atomic_store_n(&stalled, true, __ATOMIC_RELAXED);
}

void aq_probes_settle(void) {
  if (__atomic_load_n(&pending, __ATOMIC_RELAXED) > 0 && aq_depth == 0)
    aq_probes_poll();
}

/* Those in use by another thread go when it lets go of them; the driver ends their events. */
void aq_probes_drop(CUcontext context) {
  CUevent events[2 * PROBES];
  size_t count = 0;
  aq_probes_settle();
  pthread_mutex_lock(&lock);
  for (int i = 0; i < PROBES; i++) {
    struct aq_probe *probe = &probes[i];
    if (probe->state == EMPTY || (context && probe->context != context))
      continue;
    if (probe->state == BUSY) {
      probe->dropped = true;
      continue;
    }
    if (probe->state == PENDING) {
      aq_price_pending(probe->price, probe->key, -1);
      __atomic_sub_fetch(&pending, 1, __ATOMIC_RELAXED);
    }
    events[count++] = probe->start;
    events[count++] = probe->end;
    probe->context = NULL;
    probe->state = EMPTY;
  }
  pthread_mutex_unlock(&lock);
  if (count == 0)
    return;
  struct aq_own_calls calls = aq_unsafe_calls_begin();
  for (size_t i = 0; i < count; i += 2)
    destroy(events[i], events[i + 1]);
  aq_own_calls_end(&calls);
}

void aq_probes_reset(void) {
  memset(probes, 0, sizeof(probes));
  memset(seen_ns, 0, sizeof(seen_ns));
  pending = 0;
  stalled = false;
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
