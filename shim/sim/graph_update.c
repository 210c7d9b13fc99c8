/* SPDX-License-Identifier: Apache-2.0
 *
 * Changing executable graphs: one node, or all by another graph of the same shape.
 */
#include <stdlib.h>
#include <string.h>

#include "graph_exec.h"

/* Lock the driver and find the item; its type must be `type`, unless that is -1. */
static CUresult enter_item(CUgraphExec exec, CUgraphNode node, int type, const void *params,
                           struct exec_item **item) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *item = exec_is_live(exec) && params ? exec_item_of(exec, node) : NULL;
  bool valid = *item && (type == -1 || (int)(*item)->work.type == type);
  return valid ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

/* `result`: of making the work. */
static CUresult change(CUresult result, CUgraphExec exec, struct exec_item *item,
                       const struct node_work *work) {
  if (result == CUDA_SUCCESS) {
    struct node_work before = item->work;
    item->work = *work;
    result = exec_plan(exec);
    if (result != CUDA_SUCCESS) {
      item->work = before;
    }
  }
  return driver_leave(result);
}

static CUresult set(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params) {
  struct node_work work;
  struct exec_item *item;
  CUresult result = enter_item(exec, node, params ? (int)params->type : -1, params, &item);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || params->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
      params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  return change(node_of_params(params, &work), exec, item, &work);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
  return set(hGraphExec, hNode, nodeParams);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  if (nodeParams) {
    memcpy(&params.kernel, nodeParams, sizeof *nodeParams);
  }
  return set(hGraphExec, hNode, nodeParams ? &params : NULL);
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  if (nodeParams) {
    memcpy(&params.kernel, nodeParams, sizeof *nodeParams);
  }
  return set(hGraphExec, hNode, nodeParams ? &params : NULL);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
  if (copyParams) {
    params.memcpy.copyParams = *copyParams;
    params.memcpy.copyCtx = ctx;
  }
  return set(hGraphExec, hNode, copyParams ? &params : NULL);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
  if (memsetParams) {
    memcpy(&params.memset, memsetParams, sizeof *memsetParams);
    params.memset.ctx = ctx;
  }
  return set(hGraphExec, hNode, memsetParams ? &params : NULL);
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS *nodeParams) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
  if (nodeParams) {
    memcpy(&params.host, nodeParams, sizeof *nodeParams);
  }
  return set(hGraphExec, hNode, nodeParams ? &params : NULL);
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = {.event = event}};
  return set(hGraphExec, hNode, &params);
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
  CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait = {.event = event}};
  return set(hGraphExec, hNode, &params);
}

/* cuda.h: kernel, memset and memcpy nodes only. */
CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
  struct exec_item *item;
  CUresult result = enter_item(hGraphExec, hNode, -1, hNode, &item);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (item->work.type > CU_GRAPH_NODE_TYPE_MEMSET) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  bool before = item->disabled;
  item->disabled = !isEnabled;
  result = exec_plan(hGraphExec);
  if (result != CUDA_SUCCESS) {
    item->disabled = before;
  }
  return driver_leave(result);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled) {
  struct exec_item *item;
  CUresult result = enter_item(hGraphExec, hNode, -1, isEnabled, &item);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *isEnabled = !item->disabled;
  return driver_leave(CUDA_SUCCESS);
}

/* --- the whole --- */

static CUgraphExecUpdateResult compare(const struct CUgraphExec_st *old, const struct CUgraphExec_st *fresh,
                                       CUgraphNode *node) {
  *node = NULL;
  if (old->count != fresh->count || old->before_count != fresh->before_count) {
    return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  for (unsigned i = 0; i < old->count; i++) {
    const struct exec_item *one = &old->items[i];
    const struct exec_item *other = &fresh->items[i];
    *node = other->source;
    if (one->work.type != other->work.type) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
    if (one->before_count != other->before_count ||
        memcmp(&old->before[one->first_before], &fresh->before[other->first_before],
               one->before_count * sizeof *old->before) != 0) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    bool memory =
        one->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || one->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (memory && one->source != other->source) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED; /* cuda.h: memory nodes cannot be updated */
    }
  }
  *node = NULL;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* Take over what the fresh one does. */
static CUresult take_over(CUgraphExec exec, const struct CUgraphExec_st *fresh) {
  struct node_work *before = malloc((exec->count ? exec->count : 1) * sizeof *before);
  if (!before) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (unsigned i = 0; i < exec->count; i++) {
    before[i] = exec->items[i].work;
    if (!before[i].allocation) {
      exec->items[i].work = fresh->items[i].work;
    }
  }
  CUresult result = exec_plan(exec);
  for (unsigned i = 0; result != CUDA_SUCCESS && i < exec->count; i++) {
    exec->items[i].work = before[i];
  }
  free(before);
  return result;
}

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *outcome) {
  CUgraphExec fresh;
  unsigned counted = graph->executables;
  graph->executables = 0; /* this one is not to stay */
  CUresult result = exec_make(graph, 0, &fresh);
  *outcome = CU_GRAPH_EXEC_UPDATE_ERROR;
  if (result == CUDA_SUCCESS) {
    *outcome = compare(exec, fresh, node);
    result = *outcome == CU_GRAPH_EXEC_UPDATE_SUCCESS ? take_over(exec, fresh)
                                                      : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    exec_unmake(fresh);
  }
  graph->executables = counted;
  return result;
}

static CUresult enter_update(CUgraphExec exec, CUgraph graph, const void *output) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool valid = exec_is_live(exec) && graph_is_live(graph) && output;
  return valid ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out) {
  CUgraphNode node = NULL;
  CUresult result = enter_update(hGraphExec, hGraph, updateResult_out);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = update(hGraphExec, hGraph, &node, updateResult_out);
  if (hErrorNode_out) {
    *hErrorNode_out = node;
  }
  return driver_leave(result);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo *resultInfo) {
  CUresult result = enter_update(hGraphExec, hGraph, resultInfo);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *resultInfo = (CUgraphExecUpdateResultInfo){0};
  return driver_leave(update(hGraphExec, hGraph, &resultInfo->errorNode, &resultInfo->result));
}
