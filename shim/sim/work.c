/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of work: what is placed, and the list of what waits for the host.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "stream.h"
#include "work_list.h"

static struct work *first_work;
static struct work **last_link = &first_work;

void batch_release(struct batch *batch) {
  if (--batch->references == 0) {
    free(batch->items);
    free(batch->before);
    free(batch);
  }
}

/* --- places --- */

/* The legacy stream waits for all blocking streams of its context, and they for it (cuda.h, "Stream
 * synchronization behavior"). */
static uint64_t earliest_of(CUstream stream, uint64_t now) {
  const struct CUstream_st *legacy = stream->context->legacy;
  uint64_t earliest = stream->last > now ? stream->last : now;
  if (!stream_is_blocking(stream)) {
    return earliest;
  }
  if (stream->kind == STREAM_LEGACY) {
    return stream->context->blocking_end > earliest ? stream->context->blocking_end : earliest;
  }
  return legacy && legacy->last > earliest ? legacy->last : earliest;
}

static void ends_at(CUstream stream, uint64_t end) {
  stream->last = end;
  if (stream_is_blocking(stream) && end > stream->context->blocking_end) {
    stream->context->blocking_end = end;
  }
}

static void place_batch(CUstream stream, struct engine *engine, const struct batch *batch) {
  uint64_t small[64];
  uint64_t *ends = batch->count <= 64 ? small : malloc(batch->count * sizeof *ends);
  uint64_t base = earliest_of(stream, engine_now(engine));
  uint64_t end = base;
  for (unsigned i = 0; ends && i < batch->count; i++) {
    const struct batch_item *item = &batch->items[i];
    uint64_t start = base;
    for (unsigned b = 0; b < item->before_count; b++) {
      uint64_t before = ends[batch->before[item->first_before + b]];
      start = before > start ? before : start;
    }
    ends[i] = engine_place(engine, start, item->cost);
    end = ends[i] > end ? ends[i] : end;
  }
  if (ends != small) {
    free(ends);
  }
  ends_at(stream, end);
}

static void count_launch(CUstream stream) {
  if (stream->ends) {
    stream->ends[stream->launches++ % STREAM_QUEUE] = stream->last;
  }
}

/* --- what waits --- */

static bool same_context(CUstream one, CUstream other) {
  return one->context == other->context && one->serial == other->serial;
}

static bool must_follow(const struct work *before, const struct work *after) {
  CUstream a = before->stream;
  CUstream b = after->stream;
  if (a == b) {
    return true;
  }
  if (before->kind == WORK_RECORD && after->kind == WORK_WAIT && before->event == after->event) {
    return true;
  }
  bool barrier = (a->kind == STREAM_LEGACY) != (b->kind == STREAM_LEGACY);
  return barrier && same_context(a, b) && stream_is_blocking(a) && stream_is_blocking(b);
}

bool work_is_next(const struct work *work) {
  for (const struct work *before = first_work; before != work; before = before->next) {
    if (must_follow(before, work)) {
      return false;
    }
  }
  return true;
}

static bool is_on_other_gpu(CUstream stream, CUevent event) {
  return event->state == EVENT_PLACED && event->context->device != stream->context->device;
}

/* Do what the entry says. False: it has to wait (for the host, or for another GPU). */
static bool carry_out(struct work *work) {
  CUstream stream = work->stream;
  struct engine *engine = engine_of(stream->context);
  switch (work->kind) {
  case WORK_RUN:
    place_batch(stream, engine, work->batch);
    count_launch(stream);
    engine_submit(engine, work->batch->count ? work->batch->items[0].cost : (struct engine_cost){0});
    batch_release(work->batch);
    return true;
  case WORK_RECORD: {
    uint64_t now_ns = schedule_now();
    uint64_t now = schedule_received(&engine->view, now_ns);
    uint64_t place = earliest_of(stream, now);
    work->event->state = place > now ? EVENT_PLACED : EVENT_TIMED;
    work->event->place = place;
    work->event->time_ns = now_ns;
    return true;
  }
  case WORK_WAIT:
    if (is_on_other_gpu(stream, work->event)) {
      return event_is_done(work->event);
    }
    if (work->event->state == EVENT_PLACED && work->event->place > stream->last) {
      stream->last = work->event->place;
    }
    return true;
  default:
    return false;
  }
}

void work_drain(void) {
  for (struct work **link = &first_work; *link;) {
    struct work *work = *link;
    if (work->kind != WORK_HOST && work_is_next(work) && carry_out(work)) {
      work_remove(link);
      link = &first_work;
      continue;
    }
    link = &work->next;
  }
}

void work_remove(struct work **link) {
  struct work *work = *link;
  *link = work->next;
  if (last_link == &work->next) {
    last_link = link;
  }
  work->stream->waiting--;
  free(work);
}

struct work **work_list(void) {
  return &first_work;
}

static CUresult append(struct work entry) {
  struct work *work = malloc(sizeof *work);
  if (!work) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *work = entry;
  *last_link = work;
  last_link = &work->next;
  work->stream->waiting++;
  return CUDA_SUCCESS;
}

static CUresult submit(struct work work) {
  if (!engine_of(work.stream->context)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  work_drain();
  bool waits = work.kind == WORK_HOST;
  for (const struct work *before = first_work; before && !waits; before = before->next) {
    waits = must_follow(before, &work);
  }
  return !waits && carry_out(&work) ? CUDA_SUCCESS : append(work);
}

bool work_has_room(CUstream stream) {
  if (!stream->ends) {
    stream->ends = calloc(STREAM_QUEUE, sizeof *stream->ends);
  }
  struct engine *engine = engine_of(stream->context);
  if (!stream->ends || !engine) {
    return true; /* the submission will say that there is no memory */
  }
  if (stream->waiting >= STREAM_QUEUE) {
    work_drain();
    return stream->waiting < STREAM_QUEUE;
  }
  uint64_t oldest = stream->ends[stream->launches % STREAM_QUEUE];
  return stream->launches < STREAM_QUEUE || engine_now(engine) >= oldest;
}

uint64_t work_room_ns(CUstream stream) {
  struct engine *engine = engine_of(stream->context);
  uint64_t oldest = stream->ends ? stream->ends[stream->launches % STREAM_QUEUE] : 0;
  return engine ? schedule_sleep_ns(&engine->view, oldest, schedule_now()) : 1;
}

CUresult work_kernel(CUstream stream, struct engine_cost cost) {
  struct engine *engine = engine_of(stream->context);
  if (first_work || !engine) {
    struct batch *batch = engine ? calloc(1, sizeof *batch) : NULL;
    struct batch_item *item = batch ? malloc(sizeof *item) : NULL;
    if (!item) {
      free(batch);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *item = (struct batch_item){.cost = cost};
    *batch = (struct batch){.references = 1, .count = 1, .items = item};
    CUresult result = work_run(stream, batch);
    batch_release(batch);
    return result;
  }
  ends_at(stream, engine_place(engine, earliest_of(stream, engine_now(engine)), cost));
  count_launch(stream);
  engine_submit(engine, cost);
  return CUDA_SUCCESS;
}

CUresult work_run(CUstream stream, struct batch *batch) {
  batch->references++;
  CUresult result = submit((struct work){.stream = stream, .kind = WORK_RUN, .batch = batch});
  if (result != CUDA_SUCCESS) {
    batch_release(batch);
  }
  return result;
}

CUresult work_host(CUstream stream, CUhostFn function, CUstreamCallback callback, void *argument) {
  if (!work_start_thread()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = submit((struct work){
      .stream = stream, .kind = WORK_HOST, .function = function, .callback = callback, .argument = argument});
  work_wake_thread();
  return result;
}

CUresult work_record(CUstream stream, CUevent event) {
  event->state = EVENT_WAITING;
  event->context = stream->context;
  event->serial = stream->context->serial;
  return submit((struct work){.stream = stream, .kind = WORK_RECORD, .event = event});
}

CUresult work_wait(CUstream stream, CUevent event) {
  if (event->state == EVENT_NEVER) {
    return CUDA_SUCCESS;
  }
  return submit((struct work){.stream = stream, .kind = WORK_WAIT, .event = event});
}

static void forget(bool (*concerned)(const struct work *work, const void *what), const void *what) {
  for (struct work **link = &first_work; *link;) {
    if (concerned(*link, what) && !(*link)->running) {
      if ((*link)->kind == WORK_RUN) {
        batch_release((*link)->batch);
      }
      work_remove(link);
    } else {
      link = &(*link)->next;
    }
  }
}

static bool names_event(const struct work *work, const void *event) {
  return work->event == event;
}

static bool is_in_context(const struct work *work, const void *context) {
  return work->stream->context == context && work->stream->serial == work->stream->context->serial;
}

/* What an event that is destroyed was waited for is done, or never will be. */
void work_forget_event(CUevent event) {
  forget(names_event, event);
}

void work_forget_context(CUcontext context) {
  forget(is_in_context, context);
}
