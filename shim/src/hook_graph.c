/* SPDX-License-Identifier: Apache-2.0
 *
 * Graph nodes by parameter block: those that allocate are refused like the gates.
 */
#include "gates.h"
#include "state.h"

/* CUgraphNodeParams begins with the node's type. */
static CUresult refusal(const CUgraphNodeParams *params) {
  if (aq_depth > 0 || !params || *(const int *)(const void *)params != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    return CUDA_SUCCESS;
  if (!aq_is_ready())
    return CUDA_ERROR_NOT_INITIALIZED;
  return aq_all_unlimited() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params) {
  CUresult refused = AQ_REAL(cuGraphAddNode) ? refusal(params) : CUDA_ERROR_NOT_SUPPORTED;
  return refused ? refused : AQ_REAL(cuGraphAddNode)(node, graph, dependencies, count, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
  CUresult refused = AQ_REAL(cuGraphAddNode_v2) ? refusal(params) : CUDA_ERROR_NOT_SUPPORTED;
  return refused ? refused : AQ_REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, params);
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
  CUresult refused = AQ_REAL(cuGraphAddNode_v3) ? refusal(params) : CUDA_ERROR_NOT_SUPPORTED;
  return refused ? refused : AQ_REAL(cuGraphAddNode_v3)(node, graph, dependencies, edges, count, params);
}
