/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures, for those who begin, end and add to them. All of it wants the driver's lock held.
 */
#ifndef SIM_CAPTURE_LIST_H
#define SIM_CAPTURE_LIST_H

#include "capture.h"
#include "graph.h"

struct capture {
  uint64_t id; /* 0 = ended: the object waits for its next use */
  CUgraph graph;
  bool graph_is_ours;
  bool invalid;
  CUstreamCaptureMode mode;
  uint64_t thread;
  CUstream origin;
  struct capture *next;
};

/* Whether any is under way. */
bool capture_any(void);

CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, const CUgraphNode *before,
                       size_t count);
CUresult capture_end(CUstream stream, CUgraph *graph);

/* Replace what the stream's next node depends on. OUT_OF_MEMORY: nothing changed. */
CUresult capture_depend(CUstream stream, const CUgraphNode *nodes, size_t count);

/* Add a node to the stream's capture; takes over what the work owns, also on failure. */
CUresult capture_add(CUstream stream, struct node_work *work, CUgraphNode *node);

#endif
