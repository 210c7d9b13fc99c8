/* SPDX-License-Identifier: Apache-2.0
 *
 * Adding nodes of each type, and reading and changing their parameters.
 */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "graph.h"
#include "graph_memory.h"

CUresult node_of_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct node_work *work) {
  CUcontext context = params->func ? NULL : params->ctx;
  CUresult result = context ? CUDA_SUCCESS : context_current(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (params->func && function_is_live(params->func)) {
    context = params->func->module->context;
  }
  struct launch launch = {.handle = params->func ? params->func : (CUfunction)params->kern,
                          .grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
                          .block = {params->blockDimX, params->blockDimY, params->blockDimZ},
                          .shared = params->sharedMemBytes,
                          .parameters = params->kernelParams,
                          .extra = params->extra};
  *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_KERNEL, .context = context};
  result = launch_check(&launch, context, &work->kernel.cost);
  work->kernel.params = *params;
  work->kernel.params.kernelParams = NULL; /* the values were read; their place is the caller's */
  work->kernel.params.extra = NULL;
  return result;
}

CUresult node_of_alloc(CUDA_MEM_ALLOC_NODE_PARAMS *params, struct node_work *work) {
  CUdeviceptr address;
  struct graph_allocation *allocation = malloc(sizeof *allocation);
  if (!allocation) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = graph_memory_add(&params->poolProps, params->bytesize, &address);
  if (result != CUDA_SUCCESS) {
    free(allocation);
    return result;
  }
  *allocation = (struct graph_allocation){.references = 1, .address = address};
  params->dptr = address;
  *work =
      (struct node_work){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = *params, .allocation = allocation};
  return CUDA_SUCCESS;
}

CUresult node_of_free(CUdeviceptr address, struct node_work *work) {
  *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .freed = address};
  return graph_memory_knows(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult node_of_child(CUgraph child, bool move, struct node_work *work) {
  *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_GRAPH};
  if (!graph_is_live(child) || (move && child->parent)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!move && graph_has_memory(child)) {
    return CUDA_ERROR_NOT_SUPPORTED; /* cuda.h: becomes a child by moving only */
  }
  work->child = move ? child : graph_copy(child);
  return work->child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult node_of_event(CUevent event, CUgraphNodeType type, struct node_work *work) {
  *work = (struct node_work){.type = type, .event = event};
  return event_is_live(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult node_of_host(const CUDA_HOST_NODE_PARAMS *params, struct node_work *work) {
  *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_HOST, .host = *params};
  return params->fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult node_of_fill(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context,
                             struct node_work *work) {
  unsigned size = params->elementSize;
  *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = *params, .context = context};
  bool valid = (size == 1 || size == 2 || size == 4) && params->width > 0 && params->height > 0;
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult node_of_copy(const CUDA_MEMCPY3D *params, CUcontext context, struct node_work *work) {
  *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *params, .context = context};
  bool valid = params->WidthInBytes > 0 && params->Height > 0 && params->Depth > 0;
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult node_of_params(CUgraphNodeParams *params, struct node_work *work) {
  CUDA_MEMSET_NODE_PARAMS fill;
  CUDA_HOST_NODE_PARAMS host;
  CUDA_KERNEL_NODE_PARAMS kernel;
  switch (params->type) {
  case CU_GRAPH_NODE_TYPE_KERNEL:
    memcpy(&kernel, &params->kernel, sizeof kernel);
    return node_of_kernel(&kernel, work);
  case CU_GRAPH_NODE_TYPE_MEMCPY:
    return node_of_copy(&params->memcpy.copyParams, params->memcpy.copyCtx, work);
  case CU_GRAPH_NODE_TYPE_MEMSET:
    memcpy(&fill, &params->memset, sizeof fill);
    return node_of_fill(&fill, params->memset.ctx, work);
  case CU_GRAPH_NODE_TYPE_HOST:
    memcpy(&host, &params->host, sizeof host);
    return node_of_host(&host, work);
  case CU_GRAPH_NODE_TYPE_GRAPH:
    return node_of_child(params->graph.graph, params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
                         work);
  case CU_GRAPH_NODE_TYPE_EMPTY:
    *work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return CUDA_SUCCESS;
  case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    return node_of_event(params->eventWait.event, params->type, work);
  case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    return node_of_event(params->eventRecord.event, params->type, work);
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    return node_of_alloc((CUDA_MEM_ALLOC_NODE_PARAMS *)&params->alloc, work);
  case CU_GRAPH_NODE_TYPE_MEM_FREE:
    return node_of_free(params->free.dptr, work);
  default:
    return (int)params->type < 0 || params->type > 64 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  }
}

/* --- adding --- */

static CUresult enter(CUgraph graph, const void *output, const void *params) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return graph_is_live(graph) && output && params ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

/* `result`: of making the work. */
static CUresult add(CUresult result, CUgraphNode *output, CUgraph graph, const CUgraphNode *before,
                    size_t count, struct node_work *work) {
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  CUgraphNode node;
  CUgraph moved = work->type == CU_GRAPH_NODE_TYPE_GRAPH && !work->child->original ? work->child : NULL;
  result = graph_add(graph, before, count, work, &node);
  if (result == CUDA_SUCCESS) {
    *output = node;
  } else if (!moved) {
    node_work_release(work); /* a graph that was to be moved stays the caller's */
  }
  return driver_leave(result);
}

#define ADD(MAKE)                                                                                            \
  struct node_work work;                                                                                     \
  CUresult result = enter(hGraph, phGraphNode, nodeParams);                                                  \
  return result != CUDA_SUCCESS ? result                                                                     \
                                : add(MAKE, phGraphNode, hGraph, dependencies, numDependencies, &work)

#define WHERE CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies

CUresult cuGraphAddNode(WHERE, size_t numDependencies, CUgraphNodeParams *nodeParams) {
  ADD(node_of_params(nodeParams, &work));
}
CUresult cuGraphAddNode_v2(WHERE, const CUgraphEdgeData *dependencyData, size_t numDependencies,
                           CUgraphNodeParams *nodeParams) {
  (void)dependencyData;
  ADD(node_of_params(nodeParams, &work));
}
CUresult cuGraphAddNode_v3(WHERE, const CUgraphEdgeData *dependencyData, size_t numDependencies,
                           CUgraphNodeParams *nodeParams) {
  (void)dependencyData;
  ADD(node_of_params(nodeParams, &work));
}
CUresult cuGraphAddKernelNode_v2(WHERE, size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  ADD(node_of_kernel(nodeParams, &work));
}
CUresult cuGraphAddKernelNode(WHERE, size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
  CUDA_KERNEL_NODE_PARAMS full = {0};
  if (nodeParams) {
    memcpy(&full, nodeParams, sizeof *nodeParams);
  }
  ADD(node_of_kernel(&full, &work));
}
CUresult cuGraphAddHostNode(WHERE, size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams) {
  ADD(node_of_host(nodeParams, &work));
}
CUresult cuGraphAddMemAllocNode(WHERE, size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams) {
  ADD(node_of_alloc(nodeParams, &work));
}
CUresult cuGraphAddMemFreeNode(WHERE, size_t numDependencies, CUdeviceptr dptr) {
  const void *nodeParams = hGraph;
  ADD(node_of_free(dptr, &work));
}
CUresult cuGraphAddMemcpyNode(WHERE, size_t numDependencies, const CUDA_MEMCPY3D *nodeParams, CUcontext ctx) {
  ADD(node_of_copy(nodeParams, ctx, &work));
}
CUresult cuGraphAddMemsetNode(WHERE, size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *nodeParams,
                              CUcontext ctx) {
  ADD(node_of_fill(nodeParams, ctx, &work));
}
CUresult cuGraphAddEmptyNode(WHERE, size_t numDependencies) {
  const void *nodeParams = hGraph;
  ADD((work = (struct node_work){.type = CU_GRAPH_NODE_TYPE_EMPTY}, CUDA_SUCCESS));
}
CUresult cuGraphAddChildGraphNode(WHERE, size_t numDependencies, CUgraph nodeParams) {
  ADD(node_of_child(nodeParams, false, &work));
}
CUresult cuGraphAddEventRecordNode(WHERE, size_t numDependencies, CUevent nodeParams) {
  ADD(node_of_event(nodeParams, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &work));
}
CUresult cuGraphAddEventWaitNode(WHERE, size_t numDependencies, CUevent nodeParams) {
  ADD(node_of_event(nodeParams, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &work));
}

/* --- reading and changing --- */

static CUresult enter_node(CUgraphNode node, CUgraphNodeType type, const void *params) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool valid = graph_node_is_live(node) && node->work.type == type && params;
  return valid ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

#define GET(NAME, KIND, TYPE, FIELD)                                                                         \
  CUresult NAME(CUgraphNode hNode, TYPE *output) {                                                           \
    CUresult result = enter_node(hNode, CU_GRAPH_NODE_TYPE_##KIND, output);                                  \
    if (result != CUDA_SUCCESS) {                                                                            \
      return result;                                                                                         \
    }                                                                                                        \
    memcpy(output, &hNode->work.FIELD, sizeof *output);                                                      \
    return driver_leave(CUDA_SUCCESS);                                                                       \
  }

GET(cuGraphKernelNodeGetParams, KERNEL, CUDA_KERNEL_NODE_PARAMS_v1, kernel.params)
GET(cuGraphKernelNodeGetParams_v2, KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel.params)
GET(cuGraphMemcpyNodeGetParams, MEMCPY, CUDA_MEMCPY3D, copy)
GET(cuGraphMemsetNodeGetParams, MEMSET, CUDA_MEMSET_NODE_PARAMS, fill)
GET(cuGraphHostNodeGetParams, HOST, CUDA_HOST_NODE_PARAMS, host)
GET(cuGraphChildGraphNodeGetGraph, GRAPH, CUgraph, child)
GET(cuGraphEventRecordNodeGetEvent, EVENT_RECORD, CUevent, event)
GET(cuGraphEventWaitNodeGetEvent, WAIT_EVENT, CUevent, event)
GET(cuGraphMemAllocNodeGetParams, MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, alloc)
GET(cuGraphMemFreeNodeGetParams, MEM_FREE, CUdeviceptr, freed)

static CUresult change(CUresult result, CUgraphNode node, const struct node_work *work) {
  if (result == CUDA_SUCCESS) {
    node->work = *work;
  }
  return driver_leave(result);
}

#define SET(NAME, KIND, TYPE, MAKE)                                                                          \
  CUresult NAME(CUgraphNode hNode, TYPE nodeParams) {                                                        \
    struct node_work work;                                                                                   \
    CUresult result = enter_node(hNode, CU_GRAPH_NODE_TYPE_##KIND, nodeParams);                              \
    return result != CUDA_SUCCESS ? result : change(MAKE, hNode, &work);                                     \
  }

SET(cuGraphKernelNodeSetParams_v2, KERNEL, const CUDA_KERNEL_NODE_PARAMS *, node_of_kernel(nodeParams, &work))
SET(cuGraphMemcpyNodeSetParams, MEMCPY, const CUDA_MEMCPY3D *,
    node_of_copy(nodeParams, hNode->work.context, &work))
SET(cuGraphMemsetNodeSetParams, MEMSET, const CUDA_MEMSET_NODE_PARAMS *,
    node_of_fill(nodeParams, hNode->work.context, &work))
SET(cuGraphHostNodeSetParams, HOST, const CUDA_HOST_NODE_PARAMS *, node_of_host(nodeParams, &work))
SET(cuGraphEventRecordNodeSetEvent, EVENT_RECORD, CUevent,
    node_of_event(nodeParams, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &work))
SET(cuGraphEventWaitNodeSetEvent, WAIT_EVENT, CUevent,
    node_of_event(nodeParams, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &work))

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
  CUDA_KERNEL_NODE_PARAMS full = {0};
  if (nodeParams) {
    memcpy(&full, nodeParams, sizeof *nodeParams);
  }
  return cuGraphKernelNodeSetParams_v2(hNode, nodeParams ? &full : NULL);
}

/* cuda.h: the type must be the node's; memory and child nodes cannot be changed. */
static CUresult set_params(CUgraphNode node, CUgraphNodeParams *params) {
  struct node_work work;
  CUresult result = enter_node(node, params ? params->type : CU_GRAPH_NODE_TYPE_EMPTY, params);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
      params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  return change(node_of_params(params, &work), node, &work);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
  return set_params(hNode, nodeParams);
}
CUresult cuGraphNodeSetParams_v2(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
  return set_params(hNode, nodeParams);
}
