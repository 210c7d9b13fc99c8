/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of captures: who takes part, what spoils one, and how one ends.
 */
#include <stdlib.h>
#include <string.h>

#include "capture_list.h"

static struct capture *all_captures;
static unsigned under_way;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

struct capture *capture_of(const struct CUstream_st *stream) {
  return stream->capture;
}

/* --- what forbids and what spoils --- */

/* cuda.h at cuThreadExchangeStreamCaptureMode. */
bool capture_forbids_unsafe(void) {
  bool forbidden = false;
  if (under_way == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return false;
  }
  for (struct capture *capture = all_captures; capture; capture = capture->next) {
    bool own = capture->thread == stream_thread() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool others =
        thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (capture->id != 0 && (own || others)) {
      capture->invalid = true;
      forbidden = true;
    }
  }
  return forbidden;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUstreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return driver_leave(CUDA_SUCCESS);
}

bool capture_any(void) {
  return under_way > 0;
}

bool capture_spoil(CUstream stream) {
  if (stream->capture) {
    stream->capture->invalid = true;
  }
  return stream->capture != NULL;
}

static bool is_of_event(const struct CUevent_st *event) {
  return event->capture && event->capture->id == event->capture_id;
}

void capture_spoil_event(CUevent event) {
  if (is_of_event(event)) {
    event->capture->invalid = true;
  }
}

static bool would_wait_for(const struct CUstream_st *legacy, const struct CUstream_st *other) {
  return legacy->kind == STREAM_LEGACY && other->capture && stream_is_blocking(other) &&
         other->context == legacy->context && other->serial == legacy->serial;
}

bool stream_blocked_by_capture(const struct CUstream_st *stream) {
  for (CUstream other = under_way ? stream_first() : NULL; other; other = other->next) {
    if (would_wait_for(stream, other)) {
      return true;
    }
  }
  return false;
}

bool capture_spoil_implicit(CUstream stream) {
  bool spoilt = false;
  for (CUstream other = under_way ? stream_first() : NULL; other; other = other->next) {
    if (would_wait_for(stream, other)) {
      other->capture->invalid = true;
      spoilt = true;
    }
  }
  return spoilt;
}

/* --- taking part --- */

static void leave(CUstream stream) {
  stream->capture = NULL;
  free(stream->captured);
  stream->captured = NULL;
  stream->captured_count = 0;
}

CUresult capture_depend(CUstream stream, const CUgraphNode *nodes, size_t count) {
  CUgraphNode *copy = malloc((count ? count : 1) * sizeof(CUgraphNode));
  if (!copy) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (count > 0) {
    memcpy(copy, nodes, count * sizeof(CUgraphNode));
  }
  free(stream->captured);
  stream->captured = copy;
  stream->captured_count = count;
  return CUDA_SUCCESS;
}

CUresult capture_add(CUstream stream, struct node_work *work, CUgraphNode *node) {
  CUresult result = stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                             : graph_add(stream->capture->graph, stream->captured,
                                                         stream->captured_count, work, node);
  if (result != CUDA_SUCCESS) {
    node_work_release(work);
    return result;
  }
  return capture_depend(stream, node, 1);
}

CUresult capture_record(CUstream stream, CUevent event, bool external) {
  CUgraphNode node;
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event};
  if (external) {
    return capture_add(stream, &work, &node);
  }
  if (stream->capture->invalid) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  CUgraphNode *copy = malloc((stream->captured_count + 1) * sizeof(CUgraphNode));
  if (!copy) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (stream->captured_count > 0) {
    memcpy(copy, stream->captured, stream->captured_count * sizeof(CUgraphNode));
  }
  free(event->nodes);
  event->nodes = copy;
  event->node_count = stream->captured_count;
  event->capture = stream->capture;
  event->capture_id = stream->capture->id;
  return CUDA_SUCCESS;
}

/* What the stream depends on already, and what the event does. */
static CUresult merge(CUstream stream, const struct CUevent_st *event) {
  size_t room = stream->captured_count + event->node_count;
  CUgraphNode *both = malloc((room ? room : 1) * sizeof(CUgraphNode));
  if (!both) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  size_t count = 0;
  for (size_t i = 0; i < room; i++) {
    CUgraphNode node =
        i < stream->captured_count ? stream->captured[i] : event->nodes[i - stream->captured_count];
    bool known = false;
    for (size_t k = 0; k < count; k++) {
      known |= both[k] == node;
    }
    both[count] = node;
    count += !known;
  }
  free(stream->captured);
  stream->captured = both;
  stream->captured_count = count;
  return CUDA_SUCCESS;
}

CUresult capture_wait(CUstream stream, CUevent event, bool external) {
  CUgraphNode node;
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event};
  if (stream->capture && external) {
    return capture_add(stream, &work, &node);
  }
  if (stream->capture && !event->capture) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (!is_of_event(event)) {
    return CUDA_ERROR_CAPTURED_EVENT; /* of a capture that has ended */
  }
  if (stream->capture && stream->capture != event->capture) {
    stream->capture->invalid = true;
    event->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (event->capture->invalid) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  if (stream->kind == STREAM_LEGACY) {
    event->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  stream->capture = event->capture;
  return merge(stream, event);
}

CUresult capture_kernel(CUstream stream, const struct launch *launch, struct engine_cost cost) {
  CUgraphNode node;
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .context = stream->context};
  work.kernel.cost = cost;
  work.kernel.params = (CUDA_KERNEL_NODE_PARAMS){.func = launch->handle,
                                                 .gridDimX = launch->grid[0],
                                                 .gridDimY = launch->grid[1],
                                                 .gridDimZ = launch->grid[2],
                                                 .blockDimX = launch->block[0],
                                                 .blockDimY = launch->block[1],
                                                 .blockDimZ = launch->block[2],
                                                 .sharedMemBytes = launch->shared};
  if (kernel_is_live((CUkernel)launch->handle)) {
    work.kernel.params.kern = (CUkernel)launch->handle;
    work.kernel.params.func = NULL;
  }
  return capture_add(stream, &work, &node);
}

CUresult capture_host(CUstream stream, CUhostFn function, void *argument) {
  CUgraphNode node;
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {.fn = function, .userData = argument}};
  return capture_add(stream, &work, &node);
}

CUresult capture_graph(CUstream stream, CUgraph graph) {
  CUgraphNode node;
  struct node_work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
  if (!graph) {
    capture_spoil(stream);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  work.child = graph_copy(graph);
  return work.child ? capture_add(stream, &work, &node) : CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- beginning and ending --- */

CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, const CUgraphNode *before,
                       size_t count) {
  if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream->kind == STREAM_LEGACY) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  struct capture *capture = all_captures;
  while (capture && capture->id != 0) {
    capture = capture->next;
  }
  if (!capture) {
    capture = calloc(1, sizeof *capture);
    if (!capture) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->next = all_captures;
    all_captures = capture;
  }
  CUgraph target = graph ? graph : graph_make();
  if (!target || capture_depend(stream, before, count) != CUDA_SUCCESS) {
    if (target && !graph) {
      graph_unmake(target);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *capture = (struct capture){.id = ++driver.serial,
                              .graph = target,
                              .graph_is_ours = !graph,
                              .mode = mode,
                              .thread = stream_thread(),
                              .origin = stream,
                              .next = capture->next};
  stream->capture = capture;
  under_way++;
  return CUDA_SUCCESS;
}

/* Mark all that the marked nodes depend on. Mostly nodes come after what they depend on: one pass back. */
static void mark_before(CUgraph graph) {
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = graph->count; i-- > 0;) {
      CUgraphNode node = graph->nodes[i];
      if (node->position != 1) {
        continue;
      }
      node->position = 2;
      for (size_t b = 0; b < node->before_count; b++) {
        if (node->before[b]->position == 0) {
          node->before[b]->position = 1;
          changed = true;
        }
      }
    }
  }
}

/* Whether all that other streams did comes before the end of the first one. */
static bool is_joined(const struct capture *capture) {
  for (size_t i = 0; i < capture->graph->count; i++) {
    capture->graph->nodes[i]->position = 0;
  }
  for (size_t i = 0; i < capture->origin->captured_count; i++) {
    capture->origin->captured[i]->position = 1;
  }
  mark_before(capture->graph);
  for (CUstream stream = stream_first(); stream; stream = stream->next) {
    for (size_t i = 0; stream->capture == capture && i < stream->captured_count; i++) {
      if (stream->captured[i]->position == 0) {
        return false;
      }
    }
  }
  return true;
}

static void finish(struct capture *capture) {
  for (CUstream stream = stream_first(); stream; stream = stream->next) {
    if (stream->capture == capture) {
      leave(stream);
    }
  }
  capture->id = 0;
  under_way--;
}

CUresult capture_end(CUstream stream, CUgraph *graph) {
  struct capture *capture = stream->capture;
  if (!capture) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  if (capture->origin != stream) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != stream_thread()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  CUresult result = capture->invalid      ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                    : !is_joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                          : CUDA_SUCCESS;
  finish(capture);
  if (result != CUDA_SUCCESS && capture->graph_is_ours) {
    graph_unmake(capture->graph);
  }
  *graph = result == CUDA_SUCCESS ? capture->graph : NULL; /* cuda.h: NULL after a violation */
  return result;
}

void capture_abandon(CUstream stream) {
  struct capture *capture = stream->capture;
  if (!capture) {
    return;
  }
  capture->invalid = true;
  leave(stream);
  if (capture->origin == stream) {
    finish(capture);
    if (capture->graph_is_ours) {
      graph_unmake(capture->graph);
    }
  }
}
