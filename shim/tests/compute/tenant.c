/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that wants GPU time: launches one kind of work after another for ever, as programs do that
 * keep their GPU busy. Linked against the driver.
 *
 *   tenant WORK [THREADS [GPUS]]  one thread after the other on the next of so many GPUs
 *
 * WORK is one or several of, by turns and with a comma between:
 *   - NAME[@BLOCKS][+WAY], a kernel whose name says how long it takes, by WAY old, ex, coop or thread;
 *   - graph:NAME*COUNT, a graph of so many such kernels.
 *
 * Prints "ready" once the first launch is through. A line on stdin is an order: "pause", "go", "count"
 * (prints how many launches there were), "end".
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver_api.h"

enum { WORKS = 8, NAMES = 2048, BATCH = 256 };

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z);

struct work {
  char name[NAMES];
  char way[16];
  unsigned blocks;
  int graph; /* how many of the kernel; 0: no graph */
};

static struct work works[WORKS];
static int work_count;
static CUcontext contexts[WORKS];
static CUmodule modules[WORKS];
static int gpus = 1;
static unsigned long launches;
static bool paused, over;

#define CHECK(call) check((call), #call)

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: %d\n", what, result);
  exit(1);
}

static void parse(char *text) {
  for (char *one = strtok(text, ","); one && work_count < WORKS; one = strtok(NULL, ",")) {
    struct work *work = &works[work_count++];
    work->blocks = 100000;
    if (!strncmp(one, "graph:", 6) && sscanf(one + 6, "%[^*]*%d", work->name, &work->graph) == 2)
      continue;
    char *way = strchr(one, '+');
    if (way) {
      *way = 0;
      snprintf(work->way, sizeof(work->way), "%s", way + 1);
    }
    if (sscanf(one, "%[^@]@%u", work->name, &work->blocks) < 1)
      exit(2);
  }
}

static void load(int gpu) {
  static char text[WORKS * (NAMES + 64)];
  int end = sprintf(text, ".version 8.0\n.target sm_75\n.address_size 64\n");
  for (int i = 0; i < work_count; i++) {
    bool seen = false;
    for (int j = 0; j < i; j++)
      seen |= !strcmp(works[i].name, works[j].name);
    if (!seen)
      end += sprintf(text + end, ".visible .entry %s()\n{ ret; }\n", works[i].name);
  }
  CHECK(cuModuleLoadData(&modules[gpu], text));
}

static void launch(const struct work *work, CUfunction kernel, CUstream stream) {
  CUlaunchConfig config = {.gridDimX = work->blocks,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 256,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = stream};
  if (!strcmp(work->way, "ex"))
    CHECK(cuLaunchKernelEx(&config, kernel, NULL, NULL));
  else if (!strcmp(work->way, "old"))
    CHECK(cuLaunchGridAsync(kernel, (int)work->blocks, 1, stream));
  else if (!strcmp(work->way, "coop"))
    CHECK(cuLaunchCooperativeKernel(kernel, 16, 1, 1, 256, 1, 1, 0, stream, NULL));
  else if (!strcmp(work->way, "thread"))
    CHECK(cuLaunchKernel_ptsz(kernel, work->blocks, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL));
  else
    CHECK(cuLaunchKernel(kernel, work->blocks, 1, 1, 256, 1, 1, 0, stream, NULL, NULL));
}

static CUgraphExec graph_of(const struct work *work, CUfunction kernel, CUstream stream) {
  CUgraph graph;
  CUgraphExec exec;
  CHECK(cuStreamBeginCapture_v2(stream, 0));
  for (int i = 0; i < work->graph; i++)
    launch(work, kernel, stream);
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  return exec;
}

/* As a program that computes a step ahead: waits for the batch before the last, so that its GPU never runs
 * dry. */
static void *run(void *number) {
  int gpu = (int)(intptr_t)number % gpus;
  CUfunction kernels[WORKS];
  CUgraphExec execs[WORKS] = {NULL};
  CUstream stream;
  CUevent done[2];
  unsigned long mine = 0;
  CHECK(cuCtxSetCurrent(contexts[gpu]));
  CHECK(cuStreamCreate(&stream, 1));
  CHECK(cuEventCreate(&done[0], 0));
  CHECK(cuEventCreate(&done[1], 0));
  for (int i = 0; i < work_count; i++) {
    CHECK(cuModuleGetFunction(&kernels[i], modules[gpu], works[i].name));
    CHECK(cuFuncSetBlockShape(kernels[i], 256, 1, 1));
    if (works[i].graph)
      execs[i] = graph_of(&works[i], kernels[i], stream);
  }
  for (int i = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); i = (i + 1) % work_count) {
    if (works[i].graph)
      CHECK(cuGraphLaunch(execs[i], stream));
    else
      launch(&works[i], kernels[i], stream);
    unsigned long count = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    if (count == 1) {
      puts("ready");
      fflush(stdout);
    }
    if (++mine % BATCH == 0) {
      CHECK(cuEventRecord(done[mine / BATCH % 2], stream));
      CHECK(cuEventSynchronize(done[(mine / BATCH + 1) % 2]));
    }
    while (__atomic_load_n(&paused, __ATOMIC_RELAXED) && !__atomic_load_n(&over, __ATOMIC_RELAXED)) {
      struct timespec nap = {0, 2000000};
      nanosleep(&nap, NULL);
    }
  }
  CHECK(cuStreamSynchronize(stream));
  return number;
}

int main(int argc, char **argv) {
  pthread_t threads[64];
  char order[16];
  int count = argc > 2 ? atoi(argv[2]) : 1;
  gpus = argc > 3 ? atoi(argv[3]) : 1;
  if (argc < 2 || count < 1 || count > 64 || gpus < 1 || gpus > WORKS)
    return 2;
  parse(argv[1]);
  CHECK(cuInit(0));
  for (int gpu = 0; gpu < gpus; gpu++) {
    CHECK(cuDevicePrimaryCtxRetain(&contexts[gpu], gpu));
    CHECK(cuCtxSetCurrent(contexts[gpu]));
    load(gpu);
  }
  for (int i = 0; i < count; i++)
    pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i);
  while (scanf("%15s", order) == 1 && strcmp(order, "end") != 0) {
    if (!strcmp(order, "count")) {
      printf("%lu\n", __atomic_load_n(&launches, __ATOMIC_RELAXED));
      fflush(stdout);
    } else {
      __atomic_store_n(&paused, !strcmp(order, "pause"), __ATOMIC_RELAXED);
    }
  }
  __atomic_store_n(&over, true, __ATOMIC_RELAXED);
  for (int i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  return 0;
}
