/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: nodes with dependencies. All of it wants the driver's lock held.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "launch.h"
#include "user_object.h"

/* An allocation of a node: known to the memory side until node and executables are gone. */
struct graph_allocation {
  unsigned references;
  CUdeviceptr address;
};

struct node_kernel {
  CUDA_KERNEL_NODE_PARAMS params;
  struct engine_cost cost;
};

/* What a node does, by its type. */
struct node_work {
  CUgraphNodeType type;
  union {
    struct node_kernel kernel;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_HOST_NODE_PARAMS host;
    CUgraph child; /* owned by the node */
    CUevent event;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUdeviceptr freed;
  };
  CUcontext context;
  struct graph_allocation *allocation; /* of an alloc node */
};

struct CUgraphNode_st {
  uint32_t mark; /* 0 = destroyed */
  unsigned id;   /* in its graph */
  CUgraph graph;
  struct node_work work;
  CUgraphNode *before;
  size_t before_count;
  CUgraphNode original; /* in a clone */
  size_t position;      /* scratch of whoever walks the graph */
  CUgraphNode next;     /* of the free ones */
};

struct CUgraph_st {
  uint32_t mark;
  unsigned id;
  unsigned next_node;
  unsigned executables; /* that exist of it */
  CUgraphNode *nodes;   /* in the order of their making */
  size_t count, room;
  CUgraphNode parent; /* the node that it is the child of */
  CUgraph original;   /* it is a clone of */
  CUgraph next;       /* of the free ones */
  struct user_hold *held;
};

bool graph_is_live(CUgraph graph);
bool graph_node_is_live(CUgraphNode node);

CUgraph graph_make(void);
void graph_unmake(CUgraph graph);

/* Whether it has nodes that allocate or free: cuda.h forbids to clone it or to take nodes out of it. */
bool graph_has_memory(CUgraph graph);

/* A copy with the same memory; `original` of its nodes are the nodes copied. NULL: no memory. */
CUgraph graph_copy(CUgraph graph);

/* Add a node; takes over what `work` owns. */
CUresult graph_add(CUgraph graph, const CUgraphNode *before, size_t before_count,
                   const struct node_work *work, CUgraphNode *node);

/* Release what the work owns. */
void node_work_release(struct node_work *work);

/* Add or take away one dependency. INVALID_VALUE, nothing changed, if it is there (or not), or of another
 * graph. */
CUresult graph_link(CUgraph graph, CUgraphNode from, CUgraphNode to);
CUresult graph_unlink(CUgraph graph, CUgraphNode from, CUgraphNode to);

/* The nodes so that each comes after all it depends on; false: there is a circle, or no memory. To be freed.
 */
bool graph_sort(CUgraph graph, CUgraphNode **sorted);

/* What a node is to do, from its parameters. */
CUresult node_of_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct node_work *work);
CUresult node_of_alloc(CUDA_MEM_ALLOC_NODE_PARAMS *params, struct node_work *work);
CUresult node_of_free(CUdeviceptr address, struct node_work *work);
CUresult node_of_child(CUgraph child, bool move, struct node_work *work);
CUresult node_of_params(CUgraphNodeParams *params, struct node_work *work);

/* --- for memory under capture; handles as given to the entry point --- */

bool stream_capturing(CUstream stream, bool per_thread);
CUresult capture_alloc(CUstream stream, bool per_thread, const CUmemPoolProps *props, size_t size,
                       CUdeviceptr *address);
CUresult capture_free(CUstream stream, bool per_thread, CUdeviceptr address);
CUresult capture_copy(CUstream stream, bool per_thread, const CUDA_MEMCPY3D *copy);
CUresult capture_fill(CUstream stream, bool per_thread, const CUDA_MEMSET_NODE_PARAMS *fill);

#endif
