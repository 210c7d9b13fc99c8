/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and what is in them. All of it wants the driver's lock held, unless it says otherwise.
 *
 * What is submitted gets its place on the GPU's clock at once (engine.h), unless
 * something before it waits for the host: then it waits in one list for the
 * whole process, in the order of submission.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "engine.h"

#define STREAM_QUEUE 1024U /* launches that a stream holds before the next one blocks */

struct capture;

/* A number of the thread that is never used again, unlike its id. */
uint64_t stream_thread(void);

enum stream_kind { STREAM_MADE, STREAM_LEGACY, STREAM_THREAD };

/* Destroyed objects keep their memory for the next ones: a stale handle is seen as such. */
struct CUstream_st {
  uint32_t mark; /* 0 = destroyed */
  enum stream_kind kind;
  unsigned flags;
  int priority;
  CUcontext context;
  uint64_t serial; /* of the context */
  uint64_t id;
  uint64_t thread;   /* STREAM_THREAD: whose */
  uint64_t last;     /* place at which all that was placed is done */
  unsigned waiting;  /* entries of the list */
  uint64_t launches; /* ever */
  uint64_t *ends;    /* of the last STREAM_QUEUE launches */
  struct capture *capture;
  CUgraphNode *captured; /* what the next node of the capture depends on */
  size_t captured_count;
  struct CUstream_st *next;
};

enum event_state { EVENT_NEVER, EVENT_WAITING, EVENT_PLACED, EVENT_TIMED };

struct CUevent_st {
  uint32_t mark;
  unsigned flags;
  enum event_state state;
  CUcontext context; /* last recorded in, or made in */
  uint64_t serial;
  uint64_t place;
  uint64_t time_ns;
  struct capture *capture; /* recorded in one: no event of the GPU */
  uint64_t capture_id;
  CUgraphNode *nodes; /* of that capture */
  size_t node_count;
  struct CUevent_st *next;
};

/* A batch of kernels with dependencies among one another: an executable graph, or one kernel. */
struct batch {
  unsigned references;
  unsigned count;
  struct batch_item {
    struct engine_cost cost;
    unsigned first_before, before_count; /* in `before` */
  } *items;
  unsigned *before; /* indices of items, lower than one's own */
};
void batch_release(struct batch *batch);

/* The stream of a handle. INVALID_HANDLE if it is gone, INVALID_CONTEXT if a default stream has no context,
 * UNKNOWN if the GPU is lost. */
CUresult stream_find(CUstream handle, bool per_thread, CUstream *stream);

/* Context of a stream: for NULL and the two default streams the current one. INVALID_HANDLE for a stream that
 * is gone, INVALID_CONTEXT without a context. */
CUresult stream_owner(CUstream stream, CUcontext *context);

bool event_is_live(CUevent event);

bool stream_is_blocking(const struct CUstream_st *stream);

/* All streams, including the default ones made so far. */
CUstream stream_first(void);

/* --- work --- */

/* Whether the stream's queue has room for a launch. If not, release the lock, work_pause() and try again. */
bool work_has_room(CUstream stream);
uint64_t work_room_ns(CUstream stream);

/* Append to the stream. The batch is referred to until it has been placed. */
CUresult work_run(CUstream stream, struct batch *batch);
CUresult work_kernel(CUstream stream, struct engine_cost cost);
CUresult work_host(CUstream stream, CUhostFn function, CUstreamCallback callback, void *argument);
CUresult work_record(CUstream stream, CUevent event);
CUresult work_wait(CUstream stream, CUevent event);

/* Place what need not wait any longer. */
void work_drain(void);

bool stream_is_done(CUstream stream);
bool event_is_done(CUevent event);
bool context_is_done(CUcontext context);

/* How long to sleep before asking again, in ns. */
uint64_t stream_left_ns(CUstream stream);
uint64_t event_left_ns(CUevent event);
uint64_t context_left_ns(CUcontext context);

/* Sleep. Without the lock. */
void work_pause(uint64_t ns);

/* Wait until all work of the legacy (or the thread's own) stream is done, as copies with the host do. Without
 * the lock; does nothing without a context. */
void stream_drain_default(bool per_thread);

/* The host function under way in this thread, if any, must not call the driver. */
bool work_in_callback(void);

/* Run a host function of the program's in this thread, without the lock. */
void work_call_back(CUhostFn function, void *argument);

#endif
