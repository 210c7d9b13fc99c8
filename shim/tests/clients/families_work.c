/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks through contexts, and through memory that comes or goes with work.
 */
#include "families.h"

/* --- contexts and their limits --- */

void contexts(void) {
  CUcontext primary = begin(), made, other, popped;
  CUdeviceptr a, b, c;
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = physical();
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("create", cuCtxCreate_v2(&made, 0, 0));
  step("allocate in it", cuMemAlloc_v2(&b, 20 * MIB));
  step("allocate virtual", cuMemCreate(&handle, PAGE, &prop, 0));
  step("allocate of a pool", cuMemAllocAsync(&c, 4 * MIB, NULL));
  step("create", cuCtxCreate_v4(&other, NULL, 0, 0));
  step("destroy", cuCtxDestroy_v2(made));
  step("destroy twice", cuCtxDestroy_v2(made));
  step("destroy the primary", cuCtxDestroy_v2(primary));
  step("free what is gone", cuMemFree_v2(b));
  step("current", cuCtxSetCurrent(primary));
  step("free of a pool", cuMemFreeAsync(c, NULL));
  step("sync", cuCtxSynchronize());
  step("release virtual", cuMemRelease(handle));
  step("destroy other", cuCtxDestroy(other));
  step("reset", cuDevicePrimaryCtxReset_v2(0));
  step("free what is gone", cuMemFree_v2(a));
  step("retain", cuDevicePrimaryCtxRetain(&primary, 0));
  step("current", cuCtxSetCurrent(primary));
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("release", cuDevicePrimaryCtxRelease_v2(0));
  step("release once too often", cuDevicePrimaryCtxRelease_v2(0));
  step("no such device", cuDevicePrimaryCtxRetain(&primary, 7));
  step("bad flags", cuCtxCreate_v2(&made, 0xff00, 0));
  step("pop", cuCtxPopCurrent_v2(&popped));
}

void limits(void) {
  CUcontext made;
  CUcontext primary = begin();
  static const size_t values[] = {0, 512, 1024, 2048, 1500, 9000, 2048, 1024};
  static const size_t sizes[] = {4 * MIB, 8 * MIB, 9 * MIB + 1, 100 * MIB, 8 * MIB, 1024};
  for (CUlimit limit = -1; limit < 12; limit++)
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
      step("limit", cuCtxSetLimit(limit, values[i]));
  for (CUlimit limit = CU_LIMIT_PRINTF_FIFO_SIZE; limit <= CU_LIMIT_MALLOC_HEAP_SIZE; limit++)
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
      step("size", cuCtxSetLimit(limit, sizes[i]));
  step("create", cuCtxCreate_v2(&made, 0, 0));
  step("heap", cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
  step("stack", cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192));
  step("too large", cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (size_t)1 << 50));
  step("destroy", cuCtxDestroy_v2(made));
  step("current", cuCtxSetCurrent(primary));
  step("heap", cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
  step("reset", cuDevicePrimaryCtxReset_v2(0));
}

void green(void) {
  CUgreenCtx one = NULL, two = NULL;
  CUcontext context, primary;
  CUdeviceptr a;
  step("init", cuInit(0));
  struct resource resource = {0};
  CUdevResourceDesc shape = NULL;
  step("resource", cuDeviceGetDevResource(0, &resource, 1));
  step("description", cuDevResourceGenerateDesc(&shape, &resource, 1));
  step("create", cuGreenCtxCreate(&one, shape, 0, 1));
  step("create", cuGreenCtxCreate(&two, shape, 0, 1));
  step("bad flags", cuGreenCtxCreate(&two, shape, 0, 0));
  step("as context", cuCtxFromGreenCtx(&context, one));
  step("current", cuCtxSetCurrent(context));
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("destroy", cuGreenCtxDestroy(one));
  step("destroy the other", cuGreenCtxDestroy(two));
  step("retain", cuDevicePrimaryCtxRetain(&primary, 0));
  step("current", cuCtxSetCurrent(primary));
  step("free", cuMemFree_v2(a));
}

/* --- graphs --- */

static CUresult add_allocation(CUgraph graph, size_t bytes, CUgraphNode *node, CUdeviceptr *pointer) {
  CUDA_MEM_ALLOC_NODE_PARAMS params;
  memset(&params, 0, sizeof(params));
  params.poolProps = on_device();
  params.bytesize = bytes;
  CUresult result = cuGraphAddMemAllocNode(node, graph, NULL, 0, &params);
  *pointer = params.dptr;
  return result;
}

void graphs(void) {
  CUgraph graph, outer;
  CUgraphNode first, second, node;
  CUgraphExec exec, nested;
  CUdeviceptr a, b, c;
  begin();
  step("graph", cuGraphCreate(&graph, 0));
  step("allocation", add_allocation(graph, 30 * MIB, &first, &a));
  step("allocation", add_allocation(graph, 3000, &second, &b));
  step("free in the graph", cuGraphAddMemFreeNode(&node, graph, &first, 1, a));
  step("instantiate", cuGraphInstantiateWithFlags(&exec, graph, 0));
  step("upload", cuGraphUpload(exec, NULL));
  step("launch", cuGraphLaunch(exec, NULL));
  step("sync", cuStreamSynchronize(NULL));
  step("launch with a live pointer", cuGraphLaunch(exec, NULL));
  step("free", cuMemFreeAsync(b, NULL));
  step("sync", cuStreamSynchronize(NULL));
  step("trim", cuDeviceGraphMemTrim(0));
  step("launch", cuGraphLaunch(exec, NULL));
  step("sync", cuStreamSynchronize(NULL));
  step("free", cuMemFree_v2(b));
  step("graph", cuGraphCreate(&outer, 0));
  step("allocation", add_allocation(outer, 50 * MIB, &first, &c));
  step("instantiate", cuGraphInstantiateWithFlags(&nested, outer, 1));
  step("launch", cuGraphLaunch(nested, NULL));
  step("launch again", cuGraphLaunch(nested, NULL));
  step("sync", cuStreamSynchronize(NULL));
  step("destroy", cuGraphExecDestroy(exec));
  step("destroy", cuGraphExecDestroy(nested));
  step("trim", cuDeviceGraphMemTrim(0));
  step("free", cuMemFree_v2(c));
  step("trim", cuDeviceGraphMemTrim(0));
  step("destroy", cuGraphDestroy(graph));
  step("destroy", cuGraphDestroy(outer));
  step("trim", cuDeviceGraphMemTrim(0));
}

void captured(void) {
  CUstream stream, other;
  CUgraph graph;
  CUgraphExec exec;
  CUdeviceptr a, b, c;
  begin();
  step("stream", cuStreamCreate(&stream, 1));
  step("stream", cuStreamCreate(&other, 1));
  step("capture", cuStreamBeginCapture_v2(stream, 0));
  step("allocate captured", cuMemAllocAsync(&a, 30 * MIB, stream));
  step("allocate beside", cuMemAllocAsync(&b, 5 * MIB, other));
  step("free captured", cuMemFreeAsync(a, stream));
  step("allocate captured", cuMemAllocAsync(&c, 7 * MIB, stream));
  step("end", cuStreamEndCapture(stream, &graph));
  step("end twice", cuStreamEndCapture(stream, &graph));
  step("free beside", cuMemFreeAsync(b, other));
  step("instantiate", cuGraphInstantiateWithFlags(&exec, graph, 0));
  step("launch", cuGraphLaunch(exec, stream));
  step("sync", cuStreamSynchronize(stream));
  step("free", cuMemFreeAsync(c, stream));
  step("sync", cuStreamSynchronize(stream));
  step("destroy", cuGraphExecDestroy(exec));
  step("destroy", cuGraphDestroy(graph));
  step("trim", cuDeviceGraphMemTrim(0));
}

/* --- linear memory, freed while its stream is busy --- */

static volatile int opened;

static void wait_for_gate(void *unused) {
  (void)unused;
  while (!opened)
    usleep(500);
}

void freed_late(void) {
  CUstream busy, idle;
  CUcontext made, primary = begin();
  CUdeviceptr a, b, c;
  step("stream", cuStreamCreate(&busy, 1));
  step("stream", cuStreamCreate(&idle, 1));
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("allocate", cuMemAlloc_v2(&b, 6 * MIB));
  step("host function", cuLaunchHostFunc(busy, wait_for_gate, NULL));
  step("free", cuMemFreeAsync(a, busy));
  step("free twice", cuMemFreeAsync(a, busy));
  step("free plainly", cuMemFree_v2(a));
  step("free in an idle stream", cuMemFreeAsync(b, idle));
  step("sync the idle one", cuStreamSynchronize(idle));
  step("create", cuCtxCreate_v2(&made, 0, 0));
  step("allocate in it", cuMemAlloc_v2(&c, 8 * MIB));
  step("free", cuMemFreeAsync(c, busy));
  step("destroy its context", cuCtxDestroy_v2(made));
  step("current", cuCtxSetCurrent(primary));
  opened = 1;
  step("sync", cuStreamSynchronize(busy));
  step("free what is gone", cuMemFree_v2(a));
  opened = 0;
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("host function", cuLaunchHostFunc(busy, wait_for_gate, NULL));
  step("free", cuMemFreeAsync(a, busy));
  step("release", cuDevicePrimaryCtxRelease_v2(0));
  opened = 1;
}
