/* SPDX-License-Identifier: Apache-2.0
 *
 * launch: what a cuLaunchKernel takes of the caller's time in ns, median over batches that never fill the
 * queue.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "driver_api.h"

enum { BATCHES = 401, CALLS = 500 };

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);

static void check(CUresult result) {
  if (result != CUDA_SUCCESS)
    exit(1);
}

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(void) {
  static double times[BATCHES];
  CUcontext context;
  CUmodule module;
  CUfunction kernel;
  check(cuInit(0));
  check(cuDevicePrimaryCtxRetain(&context, 0));
  check(cuCtxSetCurrent(context));
  check(cuModuleLoadData(&module, ".version 8.0\n.target sm_75\n.visible .entry spin_1ns()\n{ ret; }\n"));
  check(cuModuleGetFunction(&kernel, module, "spin_1ns"));
  for (int batch = 0; batch < BATCHES; batch++) {
    double start = now_ns();
    for (int i = 0; i < CALLS; i++)
      check(cuLaunchKernel(kernel, 1000, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    times[batch] = (now_ns() - start) / CALLS;
    check(cuCtxSynchronize());
  }
  qsort(times, BATCHES, sizeof(*times), by_value);
  printf("%.1f\n", times[BATCHES / 20]);
  return 0;
}
