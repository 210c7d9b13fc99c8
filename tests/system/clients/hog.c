/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's program that takes GPU memory and keeps it: `hog MIB`. With the driver linked in statically it
 * is a program that no preload reaches, with no limit but the card's. One JSON object a line; "at" is
 * the time in seconds.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES (2UL << 20)

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  printf("{\"event\": \"error\", \"what\": \"%s\", \"result\": %d}\n", what, (int)result);
  exit(1);
}

int main(int argc, char **argv) {
  unsigned long wanted = argc > 1 ? strtoul(argv[1], NULL, 10) << 20 : 0, taken = 0;
  CUresult result = CUDA_SUCCESS;
  CUdevice device;
  CUcontext context;
  CUdeviceptr ignored;

  setvbuf(stdout, NULL, _IOLBF, 0);
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  while (taken < wanted && (result = cuMemAlloc(&ignored, PAGE_BYTES)) == CUDA_SUCCESS)
    taken += PAGE_BYTES;
  printf("{\"event\": \"holding\", \"mib\": %lu, \"result\": %d, \"at\": %.3f}\n", taken >> 20, (int)result,
         now_s());
  for (;;)
    pause();
}
