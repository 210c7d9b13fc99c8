/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for work, and the thread that runs host functions.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "work_list.h"

#define SPIN_NS    60000ULL /* sleeping takes about as long as that to end */
#define LONGEST_NS 20000000ULL
#define HOST_NS    200000ULL /* when the host is waited for */

static _Thread_local bool in_callback;

bool work_in_callback(void) {
  return in_callback;
}

void work_pause(uint64_t ns) {
  uint64_t until = schedule_now() + (ns < LONGEST_NS ? ns : LONGEST_NS);
  if (ns > SPIN_NS) {
    uint64_t sleep = (ns < LONGEST_NS ? ns : LONGEST_NS) - SPIN_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)sleep}, NULL);
  }
  while (schedule_now() < until) {
    sched_yield();
  }
}

static uint64_t left_until(CUcontext context, uint64_t place) {
  struct engine *engine = engine_of(context);
  return engine ? schedule_sleep_ns(&engine->view, place, schedule_now()) : 1;
}

static bool reached(CUcontext context, uint64_t place) {
  struct engine *engine = engine_of(context);
  return !engine || engine_now(engine) >= place;
}

/* Waiting for the legacy stream is waiting for all blocking streams of its context. */
static bool has_part(CUstream whole, const struct CUstream_st *part) {
  bool barrier = whole->kind == STREAM_LEGACY && stream_is_blocking(part);
  return part == whole || (barrier && part->context == whole->context && part->serial == whole->serial);
}

static bool waits_for_host(CUstream stream) {
  for (CUstream part = stream->kind == STREAM_LEGACY ? stream_first() : stream; part; part = part->next) {
    if (has_part(stream, part) && part->waiting > 0) {
      return true;
    }
    if (stream->kind != STREAM_LEGACY) {
      break;
    }
  }
  return false;
}

static uint64_t place_of(CUstream stream) {
  bool barrier = stream->kind == STREAM_LEGACY && stream->context->blocking_end > stream->last;
  return barrier ? stream->context->blocking_end : stream->last;
}

bool stream_is_done(CUstream stream) {
  work_drain();
  return !waits_for_host(stream) && reached(stream->context, place_of(stream));
}

uint64_t stream_left_ns(CUstream stream) {
  return waits_for_host(stream) ? HOST_NS : left_until(stream->context, place_of(stream));
}

bool event_is_done(CUevent event) {
  if (event->state == EVENT_WAITING) {
    work_drain();
  }
  bool recorded = event->state == EVENT_WAITING || event->state == EVENT_PLACED;
  if (recorded && event->serial != event->context->serial) {
    event->state = EVENT_TIMED; /* its context is gone, and all that was in it */
    event->time_ns = schedule_now();
  }
  if (event->state == EVENT_PLACED && reached(event->context, event->place)) {
    event->time_ns = schedule_time_of(&engine_of(event->context)->view, event->place);
    event->state = EVENT_TIMED;
  }
  return event->state == EVENT_NEVER || event->state == EVENT_TIMED;
}

uint64_t event_left_ns(CUevent event) {
  return event->state == EVENT_PLACED ? left_until(event->context, event->place) : HOST_NS;
}

bool context_is_done(CUcontext context) {
  bool done = true;
  for (CUstream stream = stream_first(); stream; stream = stream->next) {
    if (stream->context == context && stream->serial == context->serial) {
      done = stream_is_done(stream) && done;
    }
  }
  return done;
}

uint64_t context_left_ns(CUcontext context) {
  uint64_t most = 1;
  for (CUstream stream = stream_first(); stream; stream = stream->next) {
    if (stream->context == context && stream->serial == context->serial && !stream_is_done(stream)) {
      uint64_t left = stream_left_ns(stream);
      most = left > most ? left : most;
    }
  }
  return most;
}

void stream_drain_default(bool per_thread) {
  CUstream stream;
  while (driver_enter() == CUDA_SUCCESS) {
    bool done = stream_find(NULL, per_thread, &stream) != CUDA_SUCCESS || stream_is_done(stream);
    uint64_t left = done ? 0 : stream_left_ns(stream);
    driver_unlock();
    if (done) {
      return;
    }
    work_pause(left);
  }
}

/* --- host functions --- */

static pthread_cond_t news;
static bool started;

/* The first entry whose turn it is; how long until another one's may come. */
static struct work **next_host(uint64_t *left) {
  *left = LONGEST_NS;
  for (struct work **link = work_list(); *link; link = &(*link)->next) {
    struct work *work = *link;
    if (work->kind != WORK_HOST || !work_is_next(work)) {
      continue;
    }
    if (reached(work->stream->context, work->stream->last)) {
      return link;
    }
    uint64_t wait = left_until(work->stream->context, work->stream->last);
    *left = wait < *left ? wait : *left;
  }
  return NULL;
}

void work_call_back(CUhostFn function, void *argument) {
  in_callback = true;
  function(argument);
  in_callback = false;
}

static void run(struct work entry, bool lost) {
  driver_unlock();
  if (entry.function) {
    if (!lost) {
      work_call_back(entry.function, entry.argument);
    }
    return;
  }
  in_callback = true;
  if (entry.callback) {
    entry.callback(entry.stream->kind == STREAM_LEGACY ? NULL : entry.stream,
                   lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS, entry.argument);
  }
  in_callback = false;
}

/* The entry stays in the list while it runs: what follows waits for it. */
static void remove_entry(const struct work *entry) {
  for (struct work **link = work_list(); *link; link = &(*link)->next) {
    if (*link == entry) {
      work_remove(link);
      return;
    }
  }
}

static void *serve(void *unused) {
  (void)unused;
  while (driver_enter() == CUDA_SUCCESS) {
    uint64_t left;
    work_drain();
    struct work **link = next_host(&left);
    if (link) {
      struct work *entry = *link;
      entry->running = true;
      struct sim_gpu *gpu = &driver.books.node.state->gpu[entry->stream->context->gpu];
      run(*entry, atomic_load(&gpu->faults.lost));
      if (driver_enter() != CUDA_SUCCESS) {
        break;
      }
      remove_entry(entry);
      work_drain();
      driver_unlock();
      continue;
    }
    driver_wait(&news, *work_list() ? left : 0);
    driver_unlock();
  }
  return NULL;
}

bool work_start_thread(void) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_condattr_t clock;
  sigset_t all;
  sigset_t before;
  if (started) {
    return true;
  }
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&news, &clock);
  pthread_condattr_destroy(&clock);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for this thread */
  started = pthread_create(&thread, &attributes, serve, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return started;
}

void work_wake_thread(void) {
  pthread_cond_signal(&news);
}
