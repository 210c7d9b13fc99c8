/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's program in C, linked against the CUDA driver: takes GPU memory page by page until the
 * driver refuses, looks at what it has, gives it back, and goes on. One JSON object a line.
 *
 * After a refusal it tries again for a while: what a context costs is an estimate until measured,
 * so that a little more may fit a second later.
 */
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES (2UL << 20)
#define MAX_PAGES  131072
#define PATIENCE_S 3.0

static CUdeviceptr pages[MAX_PAGES];

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The first process of a container dies of no signal by default. */
static void on_term(int number) {
  (void)number;
  _exit(0);
}

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  printf("{\"event\": \"error\", \"what\": \"%s\", \"result\": %d}\n", what, (int)result);
  exit(1);
}

static size_t fill(CUresult *last) {
  size_t count = 0;
  double give_up_s = now_s() + PATIENCE_S;
  while (count < MAX_PAGES) {
    *last = cuMemAlloc(&pages[count], PAGE_BYTES);
    if (*last == CUDA_SUCCESS) {
      count++;
      give_up_s = now_s() + PATIENCE_S;
    } else if (*last != CUDA_ERROR_OUT_OF_MEMORY || now_s() > give_up_s) {
      break;
    } else {
      usleep(50000);
    }
  }
  return count;
}

int main(void) {
  CUdevice device;
  CUcontext context;
  CUresult last;
  CUdeviceptr small;
  char name[128];
  size_t total, free_bytes, ignored;

  signal(SIGTERM, on_term);
  setvbuf(stdout, NULL, _IOLBF, 0);
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
  check(cuDeviceTotalMem(&total, device), "cuDeviceTotalMem");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  printf("{\"event\": \"device\", \"name\": \"%s\", \"total_mib\": %zu}\n", name, total >> 20);

  size_t count = fill(&last);
  check(cuMemGetInfo(&free_bytes, &ignored), "cuMemGetInfo");
  printf("{\"event\": \"full\", \"allocated_mib\": %zu, \"result\": %d, \"free_bytes\": %zu}\n", count * 2,
         (int)last, free_bytes);
  for (size_t i = 0; i < count / 2; i++)
    check(cuMemFree(pages[i]), "cuMemFree");
  check(cuMemAlloc(&small, PAGE_BYTES), "cuMemAlloc after free");
  check(cuMemGetInfo(&free_bytes, &ignored), "cuMemGetInfo");
  printf("{\"event\": \"going on\", \"allocated_mib\": %zu, \"free_bytes\": %zu}\n",
         (count - count / 2 + 1) * 2, free_bytes);
  pause();
  return 0;
}
