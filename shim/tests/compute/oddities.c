/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs do around launches beside launching. Linked against the driver.
 *
 *   oddities errors    every launch entry with bad arguments: prints the codes
 *   oddities contexts  contexts and modules that come and go under launches, with new ones at the same
 * handles oddities captures  a thread captures in the strictest mode while another launches; prints the
 * captured nodes oddities fork      launches, forks; the child asks for the driver, the parent goes on
 *   oddities once      one kernel of 50 ms, waited for
 *   oddities stuck     a kernel that runs for long, and launches that go on meanwhile
 *
 * Ends with 1 and a line at the first call that fails and should not.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_api.h"

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuGraphDestroy(CUgraph graph);

static const char code[] =
    ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry spin_20us()\n{ ret; }\n"
    ".visible .entry spin_50ms()\n{ ret; }\n.visible .entry spin_20000ms()\n{ ret; }\n";

#define CHECK(call) check((call), #call)

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  printf("%s: %d\n", what, result);
  exit(1);
}

static CUfunction kernel_of(CUmodule *module, const char *name) {
  CUfunction kernel;
  CHECK(cuModuleLoadData(module, code));
  CHECK(cuModuleGetFunction(&kernel, *module, name));
  return kernel;
}

static CUresult launch(CUfunction kernel, unsigned blocks, unsigned threads, CUstream stream) {
  return cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream, NULL, NULL);
}

static void start(void) {
  CUcontext context;
  CHECK(cuInit(0));
  CHECK(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK(cuCtxSetCurrent(context));
}

static void errors(void) {
  CUmodule module;
  CUlaunchConfig config = {
      .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 2000, .blockDimY = 1, .blockDimZ = 1};
  CUDA_LAUNCH_PARAMS list = {
      .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
  printf("%d %d %d\n", launch(NULL, 1, 1, NULL), cuLaunchGrid(NULL, 1, 1), cuGraphLaunch(NULL, NULL));
  start();
  CUfunction kernel = kernel_of(&module, "spin_20us");
  list.function = kernel; /* without a stream */
  for (int twice = 0; twice < 2; twice++) {
    printf("%d %d %d %d\n", launch(NULL, 1, 1, NULL), launch(kernel, 0, 1, NULL), launch(kernel, 1, 0, NULL),
           launch(kernel, 1, 2000, NULL));
    printf("%d %d\n", cuLaunchKernel_ptsz(kernel, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL),
           cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 1 << 30, NULL, NULL, NULL));
    printf("%d %d %d %d\n", cuLaunchKernelEx(NULL, kernel, NULL, NULL),
           cuLaunchKernelEx_ptsz(NULL, NULL, NULL, NULL), cuLaunchKernelEx(&config, kernel, NULL, NULL),
           cuLaunchKernelEx_ptsz(&config, NULL, NULL, NULL));
    printf("%d %d\n", cuLaunchCooperativeKernel(kernel, 1000000, 1, 1, 1024, 1, 1, 0, NULL, NULL),
           cuLaunchCooperativeKernel_ptsz(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    printf("%d %d %d\n", cuLaunchCooperativeKernelMultiDevice(NULL, 1, 0),
           cuLaunchCooperativeKernelMultiDevice(&list, 0, 0),
           cuLaunchCooperativeKernelMultiDevice(&list, 1, 0));
    printf("%d %d %d %d\n", cuLaunch(NULL), cuLaunchGrid(kernel, 0, 1),
           cuLaunchGridAsync(kernel, -1, 1, NULL), cuLaunchGridAsync(NULL, 1, 1, NULL));
    printf("%d %d\n", cuGraphLaunch(NULL, NULL), cuGraphLaunch_ptsz(NULL, NULL));
  }
  CHECK(cuModuleUnload(module));
  printf("%d\n", launch(kernel, 1, 1, NULL));
}

static void contexts(void) {
  CHECK(cuInit(0));
  for (int round = 0; round < 20; round++) {
    CUcontext context;
    CUmodule module;
    CUstream stream;
    CHECK(round % 2 ? cuCtxCreate_v2(&context, 0, 0) : cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, 1));
    for (int load = 0; load < 2; load++) {
      CUfunction kernel = kernel_of(&module, load ? "spin_50ms" : "spin_20us");
      for (int i = 0; i < (load ? 1 : 20); i++)
        CHECK(launch(kernel, 1 + (unsigned)round, 64, i % 2 ? stream : NULL));
      CHECK(cuCtxSynchronize());
      CHECK(cuModuleUnload(module));
    }
    if (round % 2)
      CHECK(cuCtxDestroy_v2(context));
    else
      CHECK(round % 4 ? cuDevicePrimaryCtxReset_v2(0) : cuDevicePrimaryCtxRelease_v2(0));
  }
}

static CUcontext shared;
static CUfunction busy;
static int over;

static void *keep_launching(void *unused) {
  CUstream stream;
  CHECK(cuCtxSetCurrent(shared));
  CHECK(cuStreamCreate(&stream, 1));
  for (unsigned i = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); i++)
    CHECK(launch(busy, 1 + i % 50, 64, stream)); /* kernels that are new, and measured, all the time */
  return unused;
}

static void captures(void) {
  pthread_t thread;
  CUmodule module;
  CUstream stream;
  size_t nodes = 0;
  start();
  CHECK(cuCtxGetCurrent(&shared));
  busy = kernel_of(&module, "spin_20us");
  CHECK(cuStreamCreate(&stream, 1));
  pthread_create(&thread, NULL, keep_launching, NULL);
  for (int round = 0; round < 200; round++) {
    CUgraph graph;
    CHECK(cuStreamBeginCapture_v2(stream, 0)); /* CU_STREAM_CAPTURE_MODE_GLOBAL */
    for (int i = 0; i < 5; i++)
      CHECK(launch(busy, 1000, 64, stream));
    usleep(500);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphGetNodes(graph, NULL, &nodes));
    CHECK(cuGraphDestroy(graph));
  }
  __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
  pthread_join(thread, NULL);
  printf("%zu\n", nodes);
}

static void forked(void) {
  CUmodule module;
  int status = 0;
  start();
  CUfunction kernel = kernel_of(&module, "spin_20us");
  for (int i = 0; i < 100; i++)
    CHECK(launch(kernel, 1, 64, NULL));
  pid_t child = fork();
  if (child == 0)
    _exit(launch(kernel, 1, 64, NULL) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 3);
  waitpid(child, &status, 0);
  for (int i = 0; i < 100; i++)
    CHECK(launch(kernel, 1, 64, NULL));
  CHECK(cuCtxSynchronize());
  printf("%d\n", status);
}

static void once(void) {
  CUmodule module;
  start();
  CHECK(launch(kernel_of(&module, "spin_50ms"), 1000, 64, NULL));
  CHECK(cuCtxSynchronize());
}

static void stuck(void) {
  CUmodule module;
  CUstream streams[2];
  start();
  CUfunction longest = kernel_of(&module, "spin_20000ms");
  CUfunction other = kernel_of(&module, "spin_50ms");
  for (int i = 0; i < 2; i++)
    CHECK(cuStreamCreate(&streams[i], 1));
  CHECK(launch(longest, 1000, 64, streams[0]));
  for (int i = 0; i < 200; i++)
    CHECK(launch(other, 1000, 64, streams[1]));
  puts("all launched");
  fflush(stdout);
  _exit(0);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "errors"))
    errors();
  else if (!strcmp(what, "contexts"))
    contexts();
  else if (!strcmp(what, "captures"))
    captures();
  else if (!strcmp(what, "fork"))
    forked();
  else if (!strcmp(what, "once"))
    once();
  else if (!strcmp(what, "stuck"))
    stuck();
  else
    return 2;
  return 0;
}
