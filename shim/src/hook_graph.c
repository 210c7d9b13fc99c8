/* SPDX-License-Identifier: Apache-2.0
 *
 * Graph memory: an allocation node gives an address when it is made and takes memory when its
 * graph is uploaded or launched. What its nodes need is looked up when a graph is instantiated,
 * and announced before the first launch and after each trim; afterwards the driver says what is
 * reserved.
 */
#include "graphs.h"

#include <sys/mman.h>

#include "books.h"
#include "capture.h"
#include "contexts.h"
#include "hooks.h"
#include "pools.h"
#include "state.h"
#include "turn.h"

#define PAGE (2ULL << 20)

static bool allocating; /* some graph has an allocation node */

void aq_graphs_allocate(void) {
  __atomic_store_n(&allocating, true, __ATOMIC_RELEASE);
}

void aq_graphs_reset(void) {
  allocating = false;
}

static bool concerns_us(void) {
  return __atomic_load_n(&allocating, __ATOMIC_ACQUIRE) && aq_depth == 0;
}

/* --- nodes --- */

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
  if (!AQ_REAL(cuGraphAddMemAllocNode))
    return CUDA_ERROR_NOT_SUPPORTED;
  aq_graphs_allocate();
  return AQ_REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, params);
}

/* CUgraphNodeParams begins with the node's type. */
static void look_at(const CUgraphNodeParams *params) {
  if (params && *(const int *)(const void *)params == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    aq_graphs_allocate();
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params) {
  if (!AQ_REAL(cuGraphAddNode))
    return CUDA_ERROR_NOT_SUPPORTED;
  look_at(params);
  return AQ_REAL(cuGraphAddNode)(node, graph, dependencies, count, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
  if (!AQ_REAL(cuGraphAddNode_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  look_at(params);
  return AQ_REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, params);
}

CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
  if (!AQ_REAL(cuGraphAddNode_v3))
    return CUDA_ERROR_NOT_SUPPORTED;
  look_at(params);
  return AQ_REAL(cuGraphAddNode_v3)(node, graph, dependencies, edges, count, params);
}

/* --- what a graph needs, by device --- */

struct needs {
  uint64_t bytes[AQ_MAX_DEVICES];
};

static CUresult add_graph(struct needs *needs, CUgraph graph);

static CUresult add_node(struct needs *needs, CUgraphNode node) {
  CUgraphNodeType type;
  CUgraph child;
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  CUresult result = AQ_REAL(cuGraphNodeGetType)(node, &type);
  if (result != CUDA_SUCCESS)
    return result;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
    result = AQ_REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
    return result == CUDA_SUCCESS ? add_graph(needs, child) : result;
  }
  if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    return CUDA_SUCCESS;
  result = AQ_REAL(cuGraphMemAllocNodeGetParams)(node, &params);
  CUdevice device = result == CUDA_SUCCESS ? aq_location_device(&params.poolProps.location) : -1;
  if (aq_device_exists(device) && params.bytesize < UINT64_MAX - PAGE)
    needs->bytes[device] += (params.bytesize + PAGE - 1) & ~(PAGE - 1);
  return result;
}

static CUresult add_graph(struct needs *needs, CUgraph graph) {
  size_t count = 0;
  CUresult result = AQ_REAL(cuGraphGetNodes)(graph, NULL, &count);
  if (result != CUDA_SUCCESS || count == 0)
    return result;
  size_t bytes = count * sizeof(CUgraphNode);
  CUgraphNode *nodes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (nodes == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  result = AQ_REAL(cuGraphGetNodes)(graph, nodes, &count);
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
    result = add_node(needs, nodes[i]);
  munmap(nodes, bytes);
  return result;
}

static CUresult needs_of(CUgraph graph, struct needs *needs) {
  *needs = (struct needs){{0}};
  if (!AQ_REAL(cuGraphGetNodes) || !AQ_REAL(cuGraphNodeGetType) || !AQ_REAL(cuGraphChildGraphNodeGetGraph) ||
      !AQ_REAL(cuGraphMemAllocNodeGetParams))
    return CUDA_ERROR_NOT_SUPPORTED;
  struct aq_own_calls calls = aq_own_calls_begin();
  CUresult result = add_graph(needs, graph);
  aq_own_calls_end(&calls);
  return result;
}

/* --- executable graphs --- */

/* Handles are addresses: six bits of the key are free for the device. */
static uint64_t key_of(CUgraphExec exec, CUdevice device) {
  return (uint64_t)(uintptr_t)exec << 6 | (unsigned)device;
}

_Static_assert(AQ_MAX_DEVICES <= 64, "a device number fits into six bits");

static void forget(CUgraphExec exec) {
  struct aq_freed freed;
  for (CUdevice device = 0; aq_device_exists(device); device++)
    aq_free_begin(AQ_EXEC, key_of(exec, device), &freed);
}

/* `number` is how often the device had been trimmed when this was resident; nobody trims so often. */
#define NEVER UINT32_MAX

static bool remember(CUgraphExec exec, const struct needs *needs) {
  bool done = true;
  for (CUdevice device = 0; aq_device_exists(device); device++)
    if (needs->bytes[device])
      done &= aq_note(&(struct aq_record){
          .thing = AQ_EXEC, .key = key_of(exec, device), .bytes = needs->bytes[device], .number = NEVER});
  return done;
}

/* One that we cannot remember is not kept. */
static CUresult instantiated(CUresult result, CUgraph graph, CUgraphExec *exec) {
  struct needs needs;
  if (result != CUDA_SUCCESS || !concerns_us())
    return result;
  result = needs_of(graph, &needs);
  if (result == CUDA_SUCCESS && remember(*exec, &needs))
    return CUDA_SUCCESS;
  forget(*exec);
  if (AQ_REAL(cuGraphExecDestroy))
    AQ_REAL(cuGraphExecDestroy)(*exec);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
  if (!AQ_REAL(cuGraphInstantiate))
    return CUDA_ERROR_NOT_SUPPORTED;
  return instantiated(AQ_REAL(cuGraphInstantiate)(exec, graph, error, log, size), graph, exec);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
  if (!AQ_REAL(cuGraphInstantiate_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  return instantiated(AQ_REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size), graph, exec);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  if (!AQ_REAL(cuGraphInstantiateWithFlags))
    return CUDA_ERROR_NOT_SUPPORTED;
  return instantiated(AQ_REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), graph, exec);
}

static CUresult updated(CUresult result, CUgraphExec exec, CUgraph graph) {
  struct needs needs;
  aq_turns_doubt_graph(exec);
  if (result != CUDA_SUCCESS || !concerns_us())
    return result;
  result = needs_of(graph, &needs);
  forget(exec);
  return result == CUDA_SUCCESS && remember(exec, &needs) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error,
                           CUgraphExecUpdateResult *update) {
  if (!AQ_REAL(cuGraphExecUpdate))
    return CUDA_ERROR_NOT_SUPPORTED;
  return updated(AQ_REAL(cuGraphExecUpdate)(exec, graph, error, update), exec, graph);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
  if (!AQ_REAL(cuGraphExecUpdate_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  return updated(AQ_REAL(cuGraphExecUpdate_v2)(exec, graph, info), exec, graph);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  struct aq_record taken[AQ_MAX_DEVICES];
  struct aq_freed freed;
  size_t count = 0;
  if (!AQ_REAL(cuGraphExecDestroy))
    return CUDA_ERROR_NOT_SUPPORTED;
  for (CUdevice device = 0; concerns_us() && aq_device_exists(device); device++)
    if (aq_free_begin(AQ_EXEC, key_of(exec, device), &freed))
      taken[count++] = freed.record;
  aq_turns_doubt_graph(exec);
  CUresult result = AQ_REAL(cuGraphExecDestroy)(exec);
  for (size_t i = 0; i < count && result != CUDA_SUCCESS; i++)
    aq_note(&taken[i]);
  return result;
}

/* --- upload and launch --- */

struct run {
  CUgraphExec exec;
  size_t count;
  struct aq_pool_ask asks[AQ_MAX_DEVICES];
};

static void cancel(const struct run *run) {
  for (size_t i = 0; i < run->count; i++)
    aq_pool_cancel(&run->asks[i]);
}

static CUresult begin(struct run *run, CUgraphExec exec) {
  struct aq_record record;
  run->exec = exec;
  run->count = 0;
  for (CUdevice device = 0; aq_device_exists(device); device++) {
    if (!aq_records_find(AQ_EXEC, key_of(exec, device), &record))
      continue;
    struct aq_pool *pool = aq_pool_of_graphs(device);
    struct aq_pool_ask *ask = &run->asks[run->count];
    bool fits = pool && (aq_pool_rely(pool, record.number, ask) || aq_pool_enter(pool, record.bytes, ask));
    if (!fits) {
      cancel(run);
      return pool ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_PERMITTED;
    }
    run->count++;
  }
  return CUDA_SUCCESS;
}

static CUresult end(const struct run *run, CUresult result) {
  struct aq_record record;
  if (result != CUDA_SUCCESS) {
    cancel(run);
    return result;
  }
  for (size_t i = 0; i < run->count; i++) {
    uint32_t trims = aq_pool_trims(run->asks[i].pool); /* before it is asked what it has */
    aq_pool_leave(&run->asks[i], 0);                   /* under way: nothing to take back */
    CUdevice device = aq_pool_device(run->asks[i].pool);
    if (aq_records_find(AQ_EXEC, key_of(run->exec, device), &record)) {
      record.number = trims;
      aq_note(&record);
    }
  }
  return CUDA_SUCCESS;
}

static CUresult run(__typeof__(cuGraphLaunch) *real, CUgraphExec exec, CUstream stream, bool per_thread) {
  struct run run;
  if (!real)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!concerns_us() || aq_is_captured(stream, per_thread))
    return real(exec, stream);
  CUresult result = begin(&run, exec);
  return result == CUDA_SUCCESS ? end(&run, real(exec, stream)) : result;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return run(AQ_REAL(cuGraphUpload), exec, stream, false);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return run(AQ_REAL(cuGraphUpload_ptsz), exec, stream, true);
}

/* Costs what the whole graph was measured to take. */
static CUresult launch(__typeof__(cuGraphLaunch) *real, CUgraphExec exec, CUstream stream, bool per_thread) {
  struct aq_turn turn;
  const struct aq_launch graph = {.function = exec};
  if (aq_turns_are_off() || !exec)
    return run(real, exec, stream, per_thread);
  aq_turn_begin(&turn, &graph, stream, per_thread);
  return aq_turn_end(&turn, stream, run(real, exec, stream, per_thread));
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return launch(AQ_REAL(cuGraphLaunch), exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(AQ_REAL(cuGraphLaunch_ptsz), exec, stream, true);
}

/* CU_GRAPH_INSTANTIATE_FLAG_UPLOAD: uploads at once, with what that takes. */
static CUresult instantiate_with(__typeof__(cuGraphInstantiateWithParams) *real, CUgraphExec *exec,
                                 CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  struct needs needs;
  struct run run = {.count = 0};
  if (!real)
    return CUDA_ERROR_NOT_SUPPORTED;
  bool uploads = concerns_us() && params && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  if (uploads && needs_of(graph, &needs) == CUDA_SUCCESS)
    for (CUdevice device = 0; aq_device_exists(device); device++) {
      struct aq_pool *pool = needs.bytes[device] ? aq_pool_of_graphs(device) : NULL;
      if (pool && !aq_pool_enter(pool, needs.bytes[device], &run.asks[run.count])) {
        cancel(&run);
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      run.count += pool != NULL;
    }
  CUresult result = instantiated(real(exec, graph, params), graph, exec);
  run.exec = result == CUDA_SUCCESS ? *exec : NULL;
  return end(&run, result);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return instantiate_with(AQ_REAL(cuGraphInstantiateWithParams), exec, graph, params);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
  return instantiate_with(AQ_REAL(cuGraphInstantiateWithParams_ptsz), exec, graph, params);
}

CUresult cuDeviceGraphMemTrim(CUdevice dev) {
  if (!AQ_REAL(cuDeviceGraphMemTrim))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuDeviceGraphMemTrim)(dev);
  struct aq_pool *pool = result == CUDA_SUCCESS && concerns_us() ? aq_pool_of_graphs(dev) : NULL;
  if (pool)
    aq_pool_trimmed(pool);
  return result;
}
