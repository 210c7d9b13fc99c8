/* SPDX-License-Identifier: Apache-2.0 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "graph_memory.h"

#define GRAPH_MARK 0x48505247U
#define NODE_MARK  0x45444f4eU

static CUgraph free_graphs;
static CUgraphNode free_nodes;
static unsigned graphs_made;

bool graph_is_live(CUgraph graph) {
  return graph && graph->mark == GRAPH_MARK;
}

bool graph_node_is_live(CUgraphNode node) {
  return node && node->mark == NODE_MARK && graph_is_live(node->graph);
}

CUgraph graph_make(void) {
  CUgraph graph = free_graphs ? free_graphs : calloc(1, sizeof *graph);
  if (graph) {
    free_graphs = graph->next;
    *graph = (struct CUgraph_st){.mark = GRAPH_MARK, .id = ++graphs_made};
  }
  return graph;
}

void node_work_release(struct node_work *work) {
  if (work->type == CU_GRAPH_NODE_TYPE_GRAPH && work->child) {
    graph_unmake(work->child);
  }
  if (work->allocation && --work->allocation->references == 0) {
    graph_memory_remove(work->allocation->address);
    free(work->allocation);
  }
  work->allocation = NULL;
}

static void unmake_node(CUgraphNode node) {
  node_work_release(&node->work);
  free(node->before);
  node->before = NULL;
  node->mark = 0;
  node->next = free_nodes;
  free_nodes = node;
}

void graph_unmake(CUgraph graph) {
  for (size_t i = 0; i < graph->count; i++) {
    unmake_node(graph->nodes[i]);
  }
  free(graph->nodes);
  user_holds_end(&graph->held);
  graph->mark = 0;
  graph->next = free_graphs;
  free_graphs = graph;
}

bool graph_has_memory(CUgraph graph) {
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = &graph->nodes[i]->work;
    if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || work->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
        (work->type == CU_GRAPH_NODE_TYPE_GRAPH && graph_has_memory(work->child))) {
      return true;
    }
  }
  return false;
}

static bool are_nodes_of(CUgraph graph, const CUgraphNode *nodes, size_t count) {
  if (count > 0 && !nodes) {
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    if (!graph_node_is_live(nodes[i]) || nodes[i]->graph != graph) {
      return false;
    }
    for (size_t other = 0; other < i; other++) {
      if (nodes[other] == nodes[i]) {
        return false;
      }
    }
  }
  return true;
}

static bool make_room(CUgraph graph) {
  if (graph->count < graph->room) {
    return true;
  }
  size_t room = graph->room ? graph->room * 2 : 8;
  CUgraphNode *more = realloc(graph->nodes, room * sizeof(CUgraphNode));
  if (more) {
    graph->nodes = more;
    graph->room = room;
  }
  return more != NULL;
}

CUresult graph_add(CUgraph graph, const CUgraphNode *before, size_t before_count,
                   const struct node_work *work, CUgraphNode *node) {
  if (!are_nodes_of(graph, before, before_count)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUgraphNode *copy = malloc((before_count ? before_count : 1) * sizeof(CUgraphNode));
  CUgraphNode made = free_nodes ? free_nodes : calloc(1, sizeof *made);
  if (!copy || !made || !make_room(graph)) {
    free(copy);
    if (made && made != free_nodes) {
      free(made);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  free_nodes = made->next;
  for (size_t i = 0; i < before_count; i++) {
    copy[i] = before[i];
  }
  *made = (struct CUgraphNode_st){.mark = NODE_MARK,
                                  .id = graph->next_node++,
                                  .graph = graph,
                                  .work = *work,
                                  .before = copy,
                                  .before_count = before_count};
  if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    work->child->parent = made;
  }
  graph->nodes[graph->count++] = made;
  *node = made;
  return CUDA_SUCCESS;
}

static bool depends_on(CUgraphNode node, CUgraphNode before) {
  for (size_t i = 0; i < node->before_count; i++) {
    if (node->before[i] == before) {
      return true;
    }
  }
  return false;
}

static bool are_of(CUgraph graph, CUgraphNode from, CUgraphNode to) {
  return graph_node_is_live(from) && graph_node_is_live(to) && from->graph == graph && to->graph == graph &&
         from != to;
}

CUresult graph_link(CUgraph graph, CUgraphNode from, CUgraphNode to) {
  if (!are_of(graph, from, to) || depends_on(to, from)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUgraphNode *more = realloc(to->before, (to->before_count + 1) * sizeof(CUgraphNode));
  if (!more) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  to->before = more;
  to->before[to->before_count++] = from;
  return CUDA_SUCCESS;
}

CUresult graph_unlink(CUgraph graph, CUgraphNode from, CUgraphNode to) {
  if (!are_of(graph, from, to) || !depends_on(to, from)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t kept = 0;
  for (size_t i = 0; i < to->before_count; i++) {
    if (to->before[i] != from) {
      to->before[kept++] = to->before[i];
    }
  }
  to->before_count = kept;
  return CUDA_SUCCESS;
}

bool graph_sort(CUgraph graph, CUgraphNode **sorted) {
  CUgraphNode *order = malloc((graph->count ? graph->count : 1) * sizeof(CUgraphNode));
  size_t done = 0;
  if (!order) {
    return false;
  }
  for (size_t i = 0; i < graph->count; i++) {
    graph->nodes[i]->position = SIZE_MAX;
  }
  for (bool progress = true; progress && done < graph->count;) {
    progress = false;
    for (size_t i = 0; i < graph->count; i++) {
      CUgraphNode node = graph->nodes[i];
      bool ready = node->position == SIZE_MAX;
      for (size_t b = 0; ready && b < node->before_count; b++) {
        ready = node->before[b]->position != SIZE_MAX;
      }
      if (ready) {
        node->position = done;
        order[done++] = node;
        progress = true;
      }
    }
  }
  if (done < graph->count) {
    free(order);
    return false;
  }
  *sorted = order;
  return true;
}

static bool copy_work(const struct node_work *work, struct node_work *copy) {
  *copy = *work;
  if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    copy->child = graph_copy(work->child);
    return copy->child != NULL;
  }
  if (copy->allocation) {
    copy->allocation->references++;
  }
  return true;
}

CUgraph graph_copy(CUgraph graph) {
  CUgraph copy = graph_make();
  if (!copy) {
    return NULL;
  }
  copy->original = graph;
  if (!user_holds_copy(graph->held, &copy->held)) {
    graph_unmake(copy);
    return NULL;
  }
  for (size_t i = 0; i < graph->count; i++) {
    struct node_work work;
    CUgraphNode made;
    if (!copy_work(&graph->nodes[i]->work, &work)) {
      graph_unmake(copy);
      return NULL;
    }
    if (graph_add(copy, NULL, 0, &work, &made) != CUDA_SUCCESS) {
      node_work_release(&work);
      graph_unmake(copy);
      return NULL;
    }
    made->original = graph->nodes[i];
    graph->nodes[i]->position = i;
  }
  for (size_t i = 0; i < graph->count && copy->nodes; i++) {
    for (size_t b = 0; b < graph->nodes[i]->before_count; b++) {
      if (graph_link(copy, copy->nodes[graph->nodes[i]->before[b]->position], copy->nodes[i]) !=
          CUDA_SUCCESS) {
        graph_unmake(copy);
        return NULL;
      }
    }
  }
  return copy;
}

/* --- entry points: graphs --- */

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!phGraph || flags != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUgraph graph = graph_make();
  if (!graph) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *phGraph = graph;
  return driver_leave(CUDA_SUCCESS);
}

/* Lock the driver; the graph is live. */
static CUresult enter(CUgraph graph) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return graph_is_live(graph) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  CUresult result = enter(hGraph);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (hGraph->parent) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE); /* its node's */
  }
  graph_unmake(hGraph);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph) {
  CUresult result = enter(originalGraph);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!phGraphClone) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (graph_has_memory(originalGraph)) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED); /* cuda.h at cuGraphAddMemAllocNode */
  }
  CUgraph copy = graph_copy(originalGraph);
  if (!copy) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *phGraphClone = copy;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph) {
  CUresult result = enter(hClonedGraph);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  for (size_t i = 0; phNode && i < hClonedGraph->count; i++) {
    if (hClonedGraph->nodes[i]->original == hOriginalNode && hOriginalNode) {
      *phNode = hClonedGraph->nodes[i];
      return driver_leave(CUDA_SUCCESS);
    }
  }
  return driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphGetId(CUgraph hGraph, unsigned int *graphId) {
  CUresult result = enter(hGraph);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!graphId) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *graphId = hGraph->id;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!graph_node_is_live(hNode)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUgraph graph = hNode->graph;
  if (graph_has_memory(graph)) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  size_t kept = 0;
  for (size_t i = 0; i < graph->count; i++) {
    if (graph->nodes[i] != hNode) {
      graph_unlink(graph, hNode, graph->nodes[i]);
      graph->nodes[kept++] = graph->nodes[i];
    }
  }
  graph->count = kept;
  unmake_node(hNode);
  return driver_leave(CUDA_SUCCESS);
}
