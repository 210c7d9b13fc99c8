/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread launches a graph whose memory is there, and has to wait in the driver; meanwhile the memory is
 * trimmed, and the room is asked for. Linked against the driver.
 *
 *   relying GRAPH_BYTES BYTES    prints what the allocation of BYTES gives meanwhile, and what the launch
 * gives
 */
#include <pthread.h>

#include "families.h"

CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(void **function, CUmodule module, const char *name);
CUresult cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra);

enum { QUEUE = 1024, TICKS = 3 };

static const char image[] = ".version 8.0\n.target sm_75\n.address_size 64\n"
                            ".visible .entry spin_20us(\n.param .u64 a)\n{ ret; }\n";

static CUgraphExec exec;
static CUstream busy;
static CUcontext context;
static volatile int opened, launching;
static CUresult launched;

static void wait_for_gate(void *unused) {
  (void)unused;
  while (!opened)
    usleep(500);
}

static void *launch(void *unused) {
  (void)unused;
  cuCtxSetCurrent(context);
  launching = gettid();
  launched = cuGraphLaunch(exec, busy);
  return NULL;
}

/* A thread that waits for a place in the driver's queue takes processor time there; it takes none before. */
static void until_it_waits(void) {
  char path[64];
  unsigned long user = 0, kernel = 0;
  while (!launching)
    usleep(500);
  snprintf(path, sizeof(path), "/proc/self/task/%d/stat", launching);
  while (user + kernel < TICKS) {
    FILE *file = fopen(path, "r");
    if (!file ||
        fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
      exit(5);
    fclose(file);
    usleep(2000);
  }
}

static void check(CUresult result) {
  if (result != CUDA_SUCCESS)
    exit(10 + (int)result % 100);
}

int main(int argc, char **argv) {
  CUgraph graph;
  CUgraphNode node, end;
  CUmodule module;
  CUdeviceptr pointer, room = 0;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}}};
  void *function;
  pthread_t thread;
  if (argc != 3)
    return 2;
  check(cuInit(0));
  check(cuDevicePrimaryCtxRetain(&context, 0));
  check(cuCtxSetCurrent(context));
  check(cuStreamCreate(&busy, 1));
  check(cuModuleLoadData(&module, image));
  check(cuModuleGetFunction(&function, module, "spin_20us"));
  check(cuGraphCreate(&graph, 0));
  params.bytesize = strtoull(argv[1], NULL, 0);
  check(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
  pointer = params.dptr;
  check(cuGraphAddMemFreeNode(&end, graph, &node, 1, pointer));
  check(cuGraphInstantiateWithFlags(&exec, graph, 0));
  check(cuGraphLaunch(exec, busy));
  check(cuStreamSynchronize(busy));
  check(cuLaunchHostFunc(busy, wait_for_gate, NULL));
  for (int i = 1; i < QUEUE; i++)
    check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, busy, (void *[]){&pointer}, NULL));
  pthread_create(&thread, NULL, launch, NULL);
  until_it_waits();
  check(cuDeviceGraphMemTrim(0));
  printf("%d\n", cuMemAlloc_v2(&room, strtoull(argv[2], NULL, 0)));
  opened = 1;
  pthread_join(thread, NULL);
  printf("%d\n", launched);
  return 0;
}
