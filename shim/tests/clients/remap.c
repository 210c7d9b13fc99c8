/* SPDX-License-Identifier: Apache-2.0
 *
 * How long it takes to map memory and to give it back, with little and with much on record. Linked
 * against the driver.
 *
 *   remap LIVE     prints: nanoseconds of a turn, and the same with LIVE allocations; medians
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver_api.h"

enum { TURNS = 101 };
#define PAGE (2ULL << 20)

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags);

static int by_value(const void *a, const void *b) {
  long long first = *(const long long *)a, second = *(const long long *)b;
  return (first > second) - (first < second);
}

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static long long turn(CUdeviceptr at) {
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof(prop));
  prop.type = prop.location.type = 1;
  long long start = now();
  if (cuMemCreate(&handle, PAGE, &prop, 0) || cuMemMap(at, PAGE, 0, handle, 0) || cuMemRelease(handle) ||
      cuMemUnmap(at, PAGE))
    exit(3);
  return now() - start;
}

static long long median_turn(CUdeviceptr at) {
  long long turns[TURNS];
  for (int i = 0; i < TURNS; i++)
    turns[i] = turn(at);
  qsort(turns, TURNS, sizeof(turns[0]), by_value);
  return turns[TURNS / 2];
}

int main(int argc, char **argv) {
  CUcontext context;
  CUdeviceptr at, pointer;
  if (argc != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuMemAddressReserve(&at, PAGE, 0, 0, 0))
    return 2;
  long long with_little = median_turn(at);
  for (long i = atol(argv[1]); i > 0; i--)
    if (cuMemAlloc_v2(&pointer, 512))
      return 3;
  printf("%lld %lld\n", with_little, median_turn(at));
  return 0;
}
