/* SPDX-License-Identifier: Apache-2.0 */
#include "graph_exec.h"

#include <stdlib.h>

#define EXEC_MARK 0x43455845U

static CUgraphExec free_execs;
static unsigned execs_made;

bool exec_is_live(CUgraphExec exec) {
  return exec && exec->mark == EXEC_MARK;
}

struct exec_item *exec_item_of(CUgraphExec exec, CUgraphNode node) {
  for (unsigned i = 0; node && i < exec->count; i++) {
    if (exec->items[i].source == node) {
      return &exec->items[i];
    }
  }
  return NULL;
}

/* --- flattening --- */

static unsigned count_items(CUgraph graph) {
  unsigned count = 0;
  for (size_t i = 0; i < graph->count; i++) {
    const struct node_work *work = &graph->nodes[i]->work;
    count += work->type == CU_GRAPH_NODE_TYPE_GRAPH ? 2 + count_items(work->child) : 1;
  }
  return count;
}

static bool add_before(CUgraphExec exec, struct exec_item *item, unsigned before) {
  if ((exec->before_count & (exec->before_count - 1)) == 0) { /* room for powers of two */
    size_t room = exec->before_count ? (size_t)exec->before_count * 2 : 1;
    unsigned *more = realloc(exec->before, room * sizeof *more);
    if (!more) {
      return false;
    }
    exec->before = more;
  }
  exec->before[exec->before_count++] = before;
  item->before_count++;
  return true;
}

static struct exec_item *new_item(CUgraphExec exec, CUgraphNode source, const struct node_work *work) {
  struct exec_item *item = &exec->items[exec->count++];
  *item = (struct exec_item){.source = source, .work = *work, .first_before = exec->before_count};
  if (item->work.allocation) {
    item->work.allocation->references++;
  }
  if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    item->work.child = NULL;
  }
  return item;
}

/* `begin`: item that the roots depend on, or -1. Items of one graph stand together, in a possible order. */
static bool flatten(CUgraphExec exec, CUgraph graph, long begin) {
  static const struct node_work nothing = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
  CUgraphNode *sorted;
  if (!graph_sort(graph, &sorted)) {
    return false;
  }
  unsigned *ends = malloc((graph->count ? graph->count : 1) * sizeof *ends);
  bool good = ends != NULL;
  for (size_t i = 0; good && i < graph->count; i++) {
    CUgraphNode node = sorted[i];
    struct exec_item *item = new_item(exec, node, &node->work);
    unsigned index = exec->count - 1;
    good = node->before_count > 0 || begin < 0 || add_before(exec, item, (unsigned)begin);
    for (size_t b = 0; good && b < node->before_count; b++) {
      good = add_before(exec, item, ends[node->before[b]->position]);
    }
    if (good && node->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
      unsigned first = exec->count;
      good = flatten(exec, node->work.child, index);
      unsigned last = exec->count;
      struct exec_item *end = new_item(exec, NULL, &nothing);
      good = good && add_before(exec, end, index);
      for (unsigned inner = first; good && inner < last; inner++) {
        good = add_before(exec, end, inner);
      }
      index = exec->count - 1;
    }
    ends[i] = index;
  }
  free(ends);
  free(sorted);
  return good;
}

static bool list_allocations(CUgraphExec exec) {
  exec->allocations = malloc((exec->count ? exec->count : 1) * sizeof *exec->allocations);
  for (unsigned i = 0; exec->allocations && i < exec->count; i++) {
    if (exec->items[i].work.allocation) {
      exec->allocations[exec->allocation_count++] = exec->items[i].work.allocation->address;
    }
  }
  return exec->allocations != NULL;
}

/* --- planning --- */

static bool is_of_stream(const struct exec_item *item) {
  CUgraphNodeType type = item->work.type;
  return !item->disabled && (type == CU_GRAPH_NODE_TYPE_HOST || type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
                             type == CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

/* Items first to last, with the dependencies among them. */
static struct batch *batch_of(const struct CUgraphExec_st *exec, unsigned first, unsigned last) {
  struct batch *batch = calloc(1, sizeof *batch);
  if (!batch) {
    return NULL;
  }
  unsigned befores = 0;
  batch->references = 1;
  batch->count = last - first;
  batch->items = calloc(batch->count, sizeof *batch->items);
  batch->before = malloc((exec->before_count ? exec->before_count : 1) * sizeof *batch->before);
  if (!batch->items || !batch->before) {
    batch_release(batch);
    return NULL;
  }
  for (unsigned i = first; i < last; i++) {
    const struct exec_item *item = &exec->items[i];
    struct batch_item *planned = &batch->items[i - first];
    if (item->work.type == CU_GRAPH_NODE_TYPE_KERNEL && !item->disabled) {
      planned->cost = item->work.kernel.cost;
    }
    planned->first_before = befores;
    for (unsigned b = 0; b < item->before_count; b++) {
      unsigned before = exec->before[item->first_before + b];
      if (before >= first) {
        batch->before[befores++] = before - first;
        planned->before_count++;
      }
    }
  }
  return batch;
}

static void release_segments(struct exec_segment *segments, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    if (segments[i].batch) {
      batch_release(segments[i].batch);
    }
  }
  free(segments);
}

CUresult exec_plan(CUgraphExec exec) {
  struct exec_segment *segments = calloc(2 * exec->count + 1, sizeof *segments);
  unsigned count = 0;
  bool good = segments != NULL;
  for (unsigned first = 0; good && first < exec->count;) {
    unsigned last = first;
    while (last < exec->count && !is_of_stream(&exec->items[last])) {
      last++;
    }
    if (last > first) {
      segments[count].batch = batch_of(exec, first, last);
      good = segments[count++].batch != NULL;
    }
    if (last < exec->count) {
      segments[count++].item = last++;
    }
    first = last;
  }
  if (!good) {
    release_segments(segments, segments ? count : 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  release_segments(exec->segments, exec->segment_count);
  exec->segments = segments;
  exec->segment_count = count;
  return CUDA_SUCCESS;
}

/* --- making --- */

void exec_unmake(CUgraphExec exec) {
  if (exec->graph && graph_is_live(exec->graph) && exec->graph->id == exec->graph_id) {
    exec->graph->executables--;
  }
  for (unsigned i = 0; i < exec->count; i++) {
    node_work_release(&exec->items[i].work);
  }
  release_segments(exec->segments, exec->segment_count);
  free(exec->items);
  free(exec->before);
  free(exec->allocations);
  if (exec->copy) {
    graph_unmake(exec->copy);
  }
  user_holds_end(&exec->held);
  exec->mark = 0;
  exec->next = free_execs;
  free_execs = exec;
}

CUresult exec_make(CUgraph graph, unsigned long long flags, CUgraphExec *exec) {
  CUgraphNode *sorted;
  if (!graph_sort(graph, &sorted)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  free(sorted);
  if (graph_has_memory(graph) && graph->executables > 0) {
    return CUDA_ERROR_NOT_SUPPORTED; /* cuda.h at cuGraphAddMemAllocNode: one instantiation at a time */
  }
  CUgraphExec made = free_execs ? free_execs : calloc(1, sizeof *made);
  if (!made) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  free_execs = made->next;
  *made = (struct CUgraphExec_st){
      .mark = EXEC_MARK, .id = ++execs_made, .flags = flags, .graph = graph, .graph_id = graph->id};
  graph->executables++;
  made->items = calloc(count_items(graph) + 1, sizeof *made->items);
  made->copy = graph_has_memory(graph) ? NULL : graph_copy(graph);
  bool good = made->items && user_holds_copy(graph->held, &made->held) &&
              (made->copy || graph_has_memory(graph)) && flatten(made, graph, -1) && list_allocations(made) &&
              exec_plan(made) == CUDA_SUCCESS;
  if (!good) {
    exec_unmake(made);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *exec = made;
  return CUDA_SUCCESS;
}
