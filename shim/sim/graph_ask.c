/* SPDX-License-Identifier: Apache-2.0
 *
 * Asking graphs for their nodes and edges, and changing edges.
 */
#include <string.h>

#include "graph.h"

/* A list for the caller: *count says how much room there is, and afterwards how many there were. Places
 * beyond the end are set to NULL (cuda.h at cuGraphGetNodes). */
struct list {
  CUgraphNode *nodes;
  CUgraphNode *others;
  CUgraphEdgeData *edges;
  size_t room;
  size_t count;
};

static void put(struct list *list, CUgraphNode node, CUgraphNode other) {
  if (list->count < list->room) {
    if (list->nodes) {
      list->nodes[list->count] = node;
    }
    if (list->others) {
      list->others[list->count] = other;
    }
    if (list->edges) {
      memset(&list->edges[list->count], 0, sizeof *list->edges);
    }
  }
  list->count++;
}

static CUresult finish(struct list *list, size_t *count) {
  if (!list->nodes) {
    *count = list->count;
    return driver_leave(CUDA_SUCCESS);
  }
  for (size_t i = list->count; i < list->room; i++) {
    list->nodes[i] = NULL;
  }
  *count = list->count < list->room ? list->count : list->room;
  return driver_leave(CUDA_SUCCESS);
}

static CUresult enter(bool live, bool complete) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return live && complete ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

/* Marks are read with the lock held only. */
static CUresult enter_graph(CUgraph graph, const void *count) {
  CUresult result = enter(true, count != NULL);
  return result != CUDA_SUCCESS || graph_is_live(graph) ? result : driver_leave(CUDA_ERROR_INVALID_VALUE);
}
static CUresult enter_node(CUgraphNode node, const void *output) {
  CUresult result = enter(true, output != NULL);
  return result != CUDA_SUCCESS || graph_node_is_live(node) ? result : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

static CUresult nodes_of(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots) {
  CUresult result = enter_graph(graph, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct list list = {.nodes = nodes, .room = nodes ? *count : 0};
  for (size_t i = 0; i < graph->count; i++) {
    if (!roots || graph->nodes[i]->before_count == 0) {
      put(&list, graph->nodes[i], NULL);
    }
  }
  return finish(&list, count);
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes) {
  return nodes_of(hGraph, nodes, numNodes, false);
}
CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes) {
  return nodes_of(hGraph, rootNodes, numRootNodes, true);
}

static CUresult edges_of(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data,
                         size_t *count) {
  CUresult result = enter_graph(graph, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if ((from == NULL) != (to == NULL)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct list list = {.nodes = from, .others = to, .edges = data, .room = from ? *count : 0};
  for (size_t i = 0; i < graph->count; i++) {
    for (size_t b = 0; b < graph->nodes[i]->before_count; b++) {
      put(&list, graph->nodes[i]->before[b], graph->nodes[i]);
    }
  }
  return finish(&list, count);
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges) {
  return edges_of(hGraph, from, to, NULL, numEdges);
}
CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edgeData,
                            size_t *numEdges) {
  return edges_of(hGraph, from, to, edgeData, numEdges);
}

static CUresult neighbours(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count,
                           bool after) {
  CUresult result = enter_node(node, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct list list = {.nodes = nodes, .edges = data, .room = nodes ? *count : 0};
  for (size_t b = 0; !after && b < node->before_count; b++) {
    put(&list, node->before[b], NULL);
  }
  for (size_t i = 0; after && i < node->graph->count; i++) {
    CUgraphNode other = node->graph->nodes[i];
    for (size_t b = 0; b < other->before_count; b++) {
      if (other->before[b] == node) {
        put(&list, other, NULL);
      }
    }
  }
  return finish(&list, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies) {
  return neighbours(hNode, dependencies, NULL, numDependencies, false);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                       CUgraphEdgeData *edgeData, size_t *numDependencies) {
  return neighbours(hNode, dependencies, edgeData, numDependencies, false);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                      size_t *numDependentNodes) {
  return neighbours(hNode, dependentNodes, NULL, numDependentNodes, true);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                         CUgraphEdgeData *edgeData, size_t *numDependentNodes) {
  return neighbours(hNode, dependentNodes, edgeData, numDependentNodes, true);
}

#define OF_NODE(NAME, TYPE, EXPRESSION)                                                                      \
  CUresult NAME(CUgraphNode hNode, TYPE *output) {                                                           \
    CUresult result = enter_node(hNode, output);                                                             \
    if (result != CUDA_SUCCESS) {                                                                            \
      return result;                                                                                         \
    }                                                                                                        \
    *output = (EXPRESSION);                                                                                  \
    return driver_leave(CUDA_SUCCESS);                                                                       \
  }

OF_NODE(cuGraphNodeGetType, CUgraphNodeType, hNode->work.type)
OF_NODE(cuGraphNodeGetContainingGraph, CUgraph, hNode->graph)
OF_NODE(cuGraphNodeGetLocalId, unsigned int, hNode->id)
OF_NODE(cuGraphNodeGetToolsId, unsigned long long, (unsigned long long)hNode->graph->id << 32 | hNode->id)

/* All or none. */
static CUresult change_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count,
                             CUresult (*change)(CUgraph, CUgraphNode, CUgraphNode),
                             CUresult (*back)(CUgraph, CUgraphNode, CUgraphNode)) {
  CUresult result = enter_graph(graph, graph);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (count > 0 && (!from || !to)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (change == graph_unlink && graph_has_memory(graph)) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  size_t done = 0;
  while (done < count && (result = change(graph, from[done], to[done])) == CUDA_SUCCESS) {
    done++;
  }
  while (result != CUDA_SUCCESS && done > 0) {
    done--;
    back(graph, from[done], to[done]);
  }
  return driver_leave(result);
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t numDependencies) {
  return change_edges(hGraph, from, to, numDependencies, graph_link, graph_unlink);
}
CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies) {
  return (void)edgeData, change_edges(hGraph, from, to, numDependencies, graph_link, graph_unlink);
}
CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies) {
  return change_edges(hGraph, from, to, numDependencies, graph_unlink, graph_link);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *edgeData, size_t numDependencies) {
  return (void)edgeData, change_edges(hGraph, from, to, numDependencies, graph_unlink, graph_link);
}
