/* SPDX-License-Identifier: Apache-2.0
 *
 * Times driver calls in this process; prints "NAME NANOSECONDS" lines. With the shim preloaded
 * it times the shim over the driver, without it the bare driver.
 *
 *   measure calls        medians over batches of the usual calls
 *   measure crowd N      one cuInit in each of N processes at once: processor time
 *   measure rate SECONDS alloc|async|vmm
 *                        pairs per second of this process
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver_api.h"
#include "nvml_api.h"

enum { BATCHES = 101, CALLS = 500, LIVE = 100000, STEP = 50 };

CUresult cuCtxSetCurrent(CUcontext context);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);

static void *cuda, *nvml;
static CUdeviceptr live[LIVE];
static nvmlDevice_t device;

#define CUDA(symbol) ((__typeof__(symbol) *)dlsym(cuda, #symbol))
#define NVML(symbol) ((__typeof__(symbol) *)dlsym(nvml, #symbol))

static __typeof__(cuMemAlloc_v2) *alloc;
static __typeof__(cuMemFree_v2) *release;
static __typeof__(cuMemAllocAsync) *alloc_async;
static __typeof__(cuMemFreeAsync) *release_async;
static __typeof__(cuMemCreate) *create;
static __typeof__(cuMemRelease) *release_handle;
static __typeof__(cuMemGetInfo_v2) *info;
static __typeof__(cuGetProcAddress_v2) *lookup;
static __typeof__(nvmlDeviceGetMemoryInfo) *nvml_info;

static double clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void check(int result, const char *what) {
  if (result == 0)
    return;
  fprintf(stderr, "%s: %d\n", what, result);
  exit(1);
}

static void pair(void) {
  CUdeviceptr pointer;
  check(alloc(&pointer, 65536), "alloc");
  check(release(pointer), "free");
}

static void async_pair(void) {
  CUdeviceptr pointer;
  check(alloc_async(&pointer, 65536, NULL), "async alloc");
  check(release_async(pointer, NULL), "async free");
}

static void free_async_to(int count) {
  for (int i = 0; i < count; i++)
    check(release_async(live[i], NULL), "async free");
}

/* As a program's step does: so many blocks of several sizes at once. */
static void async_step(void) {
  for (int i = 0; i < STEP; i++)
    check(alloc_async(&live[i], (size_t)(i % 7 + 1) << 16, NULL), "async alloc");
  free_async_to(STEP);
}

/* Never the same size twice in a row. */
static void async_changing(void) {
  static size_t times;
  check(alloc_async(&live[0], 65536 + times++ % 3 * 4096, NULL), "async alloc");
  free_async_to(1);
}

static void vmm_pair(void) {
  static const CUmemAllocationProp on_device = {.type = 1, .location = {.type = 1}};
  CUmemGenericAllocationHandle handle;
  check(create(&handle, 2 << 20, &on_device, 0), "create");
  check(release_handle(handle), "release");
}

static void memory_info(void) {
  size_t free_bytes, total_bytes;
  check(info(&free_bytes, &total_bytes), "info");
}

static void nvml_memory(void) {
  nvmlMemory_t memory;
  check(nvml_info(device, &memory), "nvml memory");
}

static void lookup_hooked(void) {
  void *address;
  check(lookup("cuMemAlloc", &address, 12000, 0, NULL), "cuGetProcAddress");
}

static void lookup_other(void) {
  void *address;
  check(lookup("cuLaunchKernel", &address, 12000, 0, NULL), "cuGetProcAddress");
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure_each(const char *name, void (*call)(void), int pairs) {
  double times[BATCHES];
  for (int batch = 0; batch < BATCHES; batch++) {
    double start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < CALLS / pairs; i++)
      call();
    times[batch] = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - start) / CALLS;
  }
  qsort(times, BATCHES, sizeof(*times), ascending);
  printf("%s %.2f\n", name, times[BATCHES / 10]);
}

static void measure(const char *name, void (*call)(void)) {
  measure_each(name, call, 1);
}

static void begin(void) {
  CUcontext context;
  check(CUDA(cuInit)(0), "cuInit");
  check(CUDA(cuDevicePrimaryCtxRetain)(&context, 0), "context");
  check(CUDA(cuCtxSetCurrent)(context), "current");
  alloc = CUDA(cuMemAlloc_v2);
  release = CUDA(cuMemFree_v2);
  alloc_async = CUDA(cuMemAllocAsync);
  release_async = CUDA(cuMemFreeAsync);
  create = CUDA(cuMemCreate);
  release_handle = CUDA(cuMemRelease);
  info = CUDA(cuMemGetInfo_v2);
  lookup = CUDA(cuGetProcAddress_v2);
}

static void hold(int from, int to) {
  for (int i = from; i < to; i++)
    check(alloc(&live[i], 4096), "alloc");
}

static void hold_async(void) {
  for (int i = 0; i < LIVE; i++)
    check(alloc_async(&live[i], 4096, NULL), "async alloc");
}

static void measure_calls(void) {
  begin();
  check(NVML(nvmlInit_v2)(), "nvmlInit");
  check(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), "handle");
  nvml_info = NVML(nvmlDeviceGetMemoryInfo);
  measure("pair", pair);
  measure("async", async_pair);
  measure_each("async-step", async_step, STEP);
  measure("async-changing", async_changing);
  measure("vmm", vmm_pair);
  measure("info", memory_info);
  measure("nvml", nvml_memory);
  measure("lookup-hooked", lookup_hooked);
  measure("lookup-other", lookup_other);
  hold(0, 20000);
  measure("pair-20000", pair);
  hold(20000, LIVE);
  measure("pair-100000", pair);
  for (int i = 0; i < LIVE; i++)
    check(release(live[i]), "free");
  hold_async();
  measure("async-100000", async_pair);
}

static void measure_rate(double seconds, const char *family) {
  void (*once)(void) = !strcmp(family, "async") ? async_pair : !strcmp(family, "vmm") ? vmm_pair : pair;
  begin();
  double start = clock_ns(CLOCK_MONOTONIC);
  unsigned long pairs = 0;
  for (; clock_ns(CLOCK_MONOTONIC) - start < seconds * 1e9; pairs += 16)
    for (int i = 0; i < 16; i++)
      once();
  printf("rate %.0f\n", (double)pairs / (clock_ns(CLOCK_MONOTONIC) - start) * 1e9);
}

/* All wait at a pipe until it is closed, so that they start together. */
static void measure_crowd(int count) {
  int gate[2], ready = 0;
  char byte;
  check(pipe(gate), "pipe");
  __typeof__(cuInit) *init = CUDA(cuInit);
  while (ready < count && fork() != 0)
    ready++;
  if (ready < count) {
    close(gate[1]);
    check((int)read(gate[0], &byte, 1), "gate");
    double start = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    check(init(0), "cuInit");
    printf("init %.0f\n", clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start);
    fflush(stdout);
    _exit(0);
  }
  close(gate[0]);
  close(gate[1]);
  while (wait(NULL) > 0)
    ;
}

int main(int argc, char **argv) {
  cuda = dlopen("libcuda.so.1", RTLD_NOW);
  nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!cuda || !nvml || argc < 2)
    return 1;
  if (!strcmp(argv[1], "calls")) {
    measure_calls();
  } else if (!strcmp(argv[1], "crowd") && argc == 3) {
    measure_crowd(atoi(argv[2]));
  } else if (!strcmp(argv[1], "rate") && argc == 4) {
    measure_rate(atof(argv[2]), argv[3]);
  }
  return 0;
}
