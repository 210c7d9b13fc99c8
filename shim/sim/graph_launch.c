/* SPDX-License-Identifier: Apache-2.0
 *
 * Instantiating, changing, uploading and launching graphs.
 */
#include <string.h>

#include "capture.h"
#include "copy.h"
#include "graph_exec.h"
#include "graph_memory.h"
#include "work_list.h"

#define KNOWN_FLAGS                                                                                          \
  (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |                    \
   CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

static CUresult enter(bool complete) {
  CUresult result = driver_enter();
  return result != CUDA_SUCCESS || complete ? result : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

static CUresult instantiate(CUgraphExec *output, CUgraph graph, unsigned long long flags) {
  CUgraphExec exec;
  CUresult result = enter(output != NULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  if (!graph_is_live(graph) || (flags & ~(unsigned long long)KNOWN_FLAGS) != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = exec_make(graph, flags, &exec);
  if (result == CUDA_SUCCESS) {
    *output = exec;
  }
  return driver_leave(result);
}

/* No error has a place or a text. */
static void no_details(CUgraphNode *node, char *log, size_t size) {
  if (node) {
    *node = NULL;
  }
  if (log && size > 0) {
    *log = '\0';
  }
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                            char *logBuffer, size_t bufferSize) {
  return no_details(phErrorNode, logBuffer, bufferSize), instantiate(phGraphExec, hGraph, 0);
}
CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode,
                               char *logBuffer, size_t bufferSize) {
  return no_details(phErrorNode, logBuffer, bufferSize), instantiate(phGraphExec, hGraph, 0);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags) {
  return instantiate(phGraphExec, hGraph, flags);
}

/* --- running --- */

static CUresult upload(CUgraphExec exec, CUstream handle, bool per_thread) {
  CUstream stream;
  CUresult result = enter(true);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!exec_is_live(exec)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = stream_find(handle, per_thread, &stream);
  if (result == CUDA_SUCCESS && capture_of(stream)) {
    capture_spoil(stream);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return driver_leave(result == CUDA_SUCCESS ? graph_memory_upload(exec->allocations, exec->allocation_count)
                                             : result);
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
  return upload(hGraphExec, hStream, false);
}
CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return upload(hGraphExec, hStream, true);
}

static CUresult with_params(CUgraphExec *output, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                            bool per_thread) {
  if (!params) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  params->hErrNode_out = NULL;
  CUresult result = instantiate(output, graph, params->flags);
  if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
    result = upload(*output, params->hUploadStream, per_thread);
  }
  params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
  return with_params(phGraphExec, hGraph, instantiateParams, false);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
  return with_params(phGraphExec, hGraph, instantiateParams, true);
}

/* Memory first: a launch that finds none changes nothing. */
static CUresult take_memory(CUgraphExec exec) {
  bool auto_free = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  CUresult result = graph_memory_launch(exec->allocations, exec->allocation_count, auto_free);
  for (unsigned i = 0; result == CUDA_SUCCESS && i < exec->count; i++) {
    const struct exec_item *item = &exec->items[i];
    if (item->disabled) {
      continue;
    }
    if (item->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      result = graph_memory_free(item->work.freed);
    } else if (item->work.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      result = copy_node(&item->work.copy);
    } else if (item->work.type == CU_GRAPH_NODE_TYPE_MEMSET) {
      result = fill_node(&item->work.fill);
    }
  }
  return result;
}

static CUresult submit_item(CUstream stream, const struct exec_item *item) {
  const struct node_work *work = &item->work;
  if (work->type == CU_GRAPH_NODE_TYPE_HOST) {
    return work_host(stream, work->host.fn, NULL, work->host.userData);
  }
  if (!event_is_live(work->event)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  work->event->capture = NULL;
  return work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? work_record(stream, work->event)
                                                       : work_wait(stream, work->event);
}

static CUresult submit(CUgraphExec exec, CUstream stream) {
  CUresult result = take_memory(exec);
  for (unsigned i = 0; result == CUDA_SUCCESS && i < exec->segment_count; i++) {
    const struct exec_segment *segment = &exec->segments[i];
    result =
        segment->batch ? work_run(stream, segment->batch) : submit_item(stream, &exec->items[segment->item]);
  }
  return result;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool per_thread) {
  CUstream stream;
  CUresult result;
  while ((result = enter(true)) == CUDA_SUCCESS) {
    if (!exec_is_live(exec)) {
      return driver_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = stream_find(handle, per_thread, &stream);
    if (result == CUDA_SUCCESS && stream_blocked_by_capture(stream)) {
      capture_spoil_implicit(stream);
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (result != CUDA_SUCCESS) {
      return driver_leave(result);
    }
    if (capture_of(stream)) {
      return driver_leave(capture_graph(stream, exec->copy));
    }
    if (work_has_room(stream)) {
      return driver_leave(submit(exec, stream));
    }
    uint64_t left = work_room_ns(stream);
    driver_unlock();
    work_pause(left);
  }
  return result;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  return launch(hGraphExec, hStream, false);
}
CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return launch(hGraphExec, hStream, true);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  CUresult result = enter(true);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!exec_is_live(hGraphExec)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  exec_unmake(hGraphExec);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags) {
  CUresult result = enter(flags != NULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!exec_is_live(hGraphExec)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *flags = hGraphExec->flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphExecGetId(CUgraphExec hGraphExec, unsigned int *graphId) {
  CUresult result = enter(graphId != NULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!exec_is_live(hGraphExec)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *graphId = hGraphExec->id;
  return driver_leave(CUDA_SUCCESS);
}
