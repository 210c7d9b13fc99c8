/* SPDX-License-Identifier: Apache-2.0
 *
 * Executable graphs: all nodes in one list, children included, and what a launch submits of them. All of it
 * wants the driver's lock held.
 */
#ifndef SIM_GRAPH_EXEC_H
#define SIM_GRAPH_EXEC_H

#include "graph.h"
#include "stream.h"

struct exec_item {
  CUgraphNode source; /* of the graph it was made from; NULL: begin or end of a child */
  struct node_work work;
  bool disabled;
  unsigned first_before, before_count; /* in `before` of the executable */
};

/* A launch submits segments one after the other: kernels that depend on one another in any way, or one thing
 * that the stream itself does. */
struct exec_segment {
  struct batch *batch; /* or */
  unsigned item;       /* a host function, or an event */
};

struct CUgraphExec_st {
  uint32_t mark;
  unsigned id;
  unsigned long long flags;
  CUgraph graph; /* NULL once that is gone: for the count of its executables */
  unsigned graph_id;
  struct user_hold *held; /* of its own: the graph may be gone */
  CUgraph copy;           /* what a capture of a launch gets as a child */
  struct exec_item *items;
  unsigned count;
  unsigned *before;
  unsigned before_count;
  struct exec_segment *segments;
  unsigned segment_count;
  CUdeviceptr *allocations;
  unsigned allocation_count;
  CUgraphExec next;
};

bool exec_is_live(CUgraphExec exec);

/* INVALID_VALUE: a circle; NOT_SUPPORTED: a second one of a graph with memory; OUT_OF_MEMORY. */
CUresult exec_make(CUgraph graph, unsigned long long flags, CUgraphExec *exec);
void exec_unmake(CUgraphExec exec);

/* Make the segments anew after items have changed. OUT_OF_MEMORY: nothing changed. */
CUresult exec_plan(CUgraphExec exec);

/* The item made of a node, or NULL. */
struct exec_item *exec_item_of(CUgraphExec exec, CUgraphNode node);

#endif
