/* SPDX-License-Identifier: Apache-2.0
 *
 * launches THREADS SECONDS: threads of one process that launch, record, wait, capture and replay without a
 * pause. Prints how many kernels were launched; ends with 1 at the first call that fails.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char code[] = ".version 8.0\n.target sm_75\n.visible .entry spin_20us()\n{ ret; }\n"
                           ".visible .entry spin_100us()\n{ ret; }\n";
static CUcontext context;
static CUfunction kernels[2];
static _Atomic unsigned long launched;
static time_t end;

static void check(CUresult result, int line) {
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "line %d: error %d\n", line, (int)result);
    exit(1);
  }
}
#define CHECK(call) check((call), __LINE__)

static void launch(CUstream stream, unsigned which) {
  CHECK(cuLaunchKernel(kernels[which % 2], 1 + which % 200, 1, 1, 128, 1, 1, 0, stream, NULL, NULL));
  atomic_fetch_add(&launched, 1);
}

static void replay(CUstream stream) {
  CUgraph graph;
  CUgraphExec exec;
  CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (unsigned i = 0; i < 5; i++) {
    launch(stream, i);
  }
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 3; i++) {
    CHECK(cuGraphLaunch(exec, stream));
  }
  CHECK(cuGraphExecDestroy(exec));
  CHECK(cuGraphDestroy(graph));
}

static void *work(void *argument) {
  unsigned dice = (unsigned)(size_t)argument;
  CUstream stream;
  CUevent start;
  CUevent stop;
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, dice % 2 ? CU_STREAM_NON_BLOCKING : 0));
  CHECK(cuEventCreate(&start, 0));
  CHECK(cuEventCreate(&stop, 0));
  while (time(NULL) < end) {
    float milliseconds;
    CHECK(cuEventRecord(start, stream));
    for (unsigned i = 0; i < 50; i++) {
      launch(rand_r(&dice) % 8 ? stream : CU_STREAM_PER_THREAD, rand_r(&dice));
    }
    CHECK(cuEventRecord(stop, stream));
    replay(stream);
    CHECK(cuEventSynchronize(stop));
    CHECK(cuEventElapsedTime(&milliseconds, start, stop));
    check(milliseconds >= 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, __LINE__);
  }
  CHECK(cuStreamSynchronize(stream));
  CHECK(cuStreamDestroy(stream));
  CHECK(cuEventDestroy(start));
  CHECK(cuEventDestroy(stop));
  return NULL;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  pthread_t all[64];
  CUmodule module;
  end = time(NULL) + (argc > 2 ? atoi(argv[2]) : 1);
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, code));
  CHECK(cuModuleGetFunction(&kernels[0], module, "spin_20us"));
  CHECK(cuModuleGetFunction(&kernels[1], module, "spin_100us"));
  for (int i = 0; i < threads; i++) {
    pthread_create(&all[i], NULL, work, (void *)(size_t)(i + 1));
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(all[i], NULL);
  }
  CHECK(cuCtxSynchronize());
  printf("%lu\n", atomic_load(&launched));
  return 0;
}
