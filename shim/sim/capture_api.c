/* SPDX-License-Identifier: Apache-2.0
 *
 * Entry points of captures.
 */
#include <string.h>

#include "capture_list.h"

static CUresult enter(CUstream handle, bool per_thread, CUstream *stream, bool complete) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = complete ? stream_find(handle, per_thread, stream) : CUDA_ERROR_INVALID_VALUE;
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

static CUresult begin(CUstream handle, bool per_thread, CUstreamCaptureMode mode) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream, true);
  return result == CUDA_SUCCESS ? driver_leave(capture_begin(stream, mode, NULL, NULL, 0)) : result;
}

CUresult cuStreamBeginCapture(CUstream hStream) {
  return begin(hStream, false, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCapture_ptsz(CUstream hStream) {
  return begin(hStream, true, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  return begin(hStream, false, mode);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
  return begin(hStream, true, mode);
}

static bool are_nodes_of(CUgraph graph, const CUgraphNode *nodes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!nodes || !graph_node_is_live(nodes[i]) || nodes[i]->graph != graph) {
      return false;
    }
  }
  return true;
}

static CUresult begin_to_graph(CUstream handle, bool per_thread, CUgraph graph, const CUgraphNode *before,
                               size_t count, CUstreamCaptureMode mode) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream, true);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool valid = graph_is_live(graph) && are_nodes_of(graph, before, count);
  return driver_leave(valid ? capture_begin(stream, mode, graph, before, count) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                     CUstreamCaptureMode mode) {
  return (void)dependencyData, begin_to_graph(hStream, false, hGraph, dependencies, numDependencies, mode);
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                          CUstreamCaptureMode mode) {
  return (void)dependencyData, begin_to_graph(hStream, true, hGraph, dependencies, numDependencies, mode);
}

static CUresult end(CUstream handle, bool per_thread, CUgraph *graph) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream, graph != NULL);
  return result == CUDA_SUCCESS ? driver_leave(capture_end(stream, graph)) : result;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph) {
  return end(hStream, false, phGraph);
}
CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph *phGraph) {
  return end(hStream, true, phGraph);
}

/* --- asking --- */

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream) {
  return !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
         : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

struct info {
  CUstreamCaptureStatus *status;
  cuuint64_t *id;
  CUgraph *graph;
  const CUgraphNode **nodes;
  const CUgraphEdgeData **edges;
  size_t *count;
};

static CUresult ask(CUstream handle, bool per_thread, struct info info) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream, info.status != NULL);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (stream_blocked_by_capture(stream)) {
    return driver_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  *info.status = status_of(stream);
  if (*info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return driver_leave(CUDA_SUCCESS);
  }
  if (info.id) {
    *info.id = stream->capture->id;
  }
  if (info.graph) {
    *info.graph = stream->capture->graph;
  }
  if (info.nodes) {
    *info.nodes = stream->captured;
  }
  if (info.edges) {
    *info.edges = NULL; /* all edges are plain */
  }
  if (info.count) {
    *info.count = stream->captured_count;
  }
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
  return ask(hStream, false, (struct info){.status = captureStatus});
}
CUresult cuStreamIsCapturing_ptsz(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
  return ask(hStream, true, (struct info){.status = captureStatus});
}

#define INFO CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out
#define MORE CUgraph *graph_out, const CUgraphNode **dependencies_out
#define ASK(PER_THREAD, ...)                                                                                 \
  ask(hStream, PER_THREAD, (struct info){.status = captureStatus_out, .id = id_out, __VA_ARGS__})

CUresult cuStreamGetCaptureInfo(INFO) {
  return ASK(false, .graph = NULL);
}
CUresult cuStreamGetCaptureInfo_ptsz(INFO) {
  return ASK(true, .graph = NULL);
}
CUresult cuStreamGetCaptureInfo_v2(INFO, MORE, size_t *numDependencies_out) {
  return ASK(false, .graph = graph_out, .nodes = dependencies_out, .count = numDependencies_out);
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(INFO, MORE, size_t *numDependencies_out) {
  return ASK(true, .graph = graph_out, .nodes = dependencies_out, .count = numDependencies_out);
}
CUresult cuStreamGetCaptureInfo_v3(INFO, MORE, const CUgraphEdgeData **edgeData_out,
                                   size_t *numDependencies_out) {
  return ASK(false, .graph = graph_out, .nodes = dependencies_out, .edges = edgeData_out,
             .count = numDependencies_out);
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(INFO, MORE, const CUgraphEdgeData **edgeData_out,
                                        size_t *numDependencies_out) {
  return ASK(true, .graph = graph_out, .nodes = dependencies_out, .edges = edgeData_out,
             .count = numDependencies_out);
}

static CUresult update(CUstream handle, bool per_thread, const CUgraphNode *nodes, size_t count,
                       unsigned flags) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream, flags <= CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!stream->capture) {
    return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
  }
  if (!are_nodes_of(stream->capture->graph, nodes, count)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
    return driver_leave(capture_depend(stream, nodes, count));
  }
  CUgraphNode all[1024];
  size_t total = 0;
  for (size_t i = 0; i < stream->captured_count + count && total < 1024; i++) {
    CUgraphNode node = i < stream->captured_count ? stream->captured[i] : nodes[i - stream->captured_count];
    bool known = false;
    for (size_t k = 0; k < total; k++) {
      known |= all[k] == node;
    }
    all[total] = node;
    total += !known;
  }
  return driver_leave(capture_depend(stream, all, total));
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
                                           size_t numDependencies, unsigned int flags) {
  return update(hStream, false, dependencies, numDependencies, flags);
}
CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream hStream, CUgraphNode *dependencies,
                                                size_t numDependencies, unsigned int flags) {
  return update(hStream, true, dependencies, numDependencies, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                              unsigned int flags) {
  return (void)dependencyData, update(hStream, false, dependencies, numDependencies, flags);
}
CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream hStream, CUgraphNode *dependencies,
                                                   const CUgraphEdgeData *dependencyData,
                                                   size_t numDependencies, unsigned int flags) {
  return (void)dependencyData, update(hStream, true, dependencies, numDependencies, flags);
}
