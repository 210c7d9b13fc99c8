/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that take references to mapped memory and give them back at once, while another maps it
 * elsewhere. Linked against the driver.
 *
 *   retained WAY   at the end prints "WAY: RESULT" and waits for a line, so that a test can look at the
 *                  books; then nothing is held any more
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "driver_api.h"

enum { THREADS = 3, ROUNDS = 30000 };
#define SIZE (64ULL << 20)

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags);

static CUdeviceptr at;
static int failed;

static void expect(CUresult result) {
  if (result != CUDA_SUCCESS)
    __atomic_store_n(&failed, result, __ATOMIC_RELAXED);
}

static void *retain(void *unused) {
  CUmemGenericAllocationHandle again;
  for (int round = 0; round < ROUNDS; round++) {
    expect(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
    expect(cuMemRelease(again));
  }
  return unused;
}

int main(int argc, char **argv) {
  char line[8];
  CUcontext context;
  pthread_t threads[THREADS];
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof(prop));
  prop.type = prop.location.type = 1;
  if (argc != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
      cuMemAddressReserve(&at, 2 * SIZE, 0, 0, 0) || cuMemCreate(&handle, SIZE, &prop, 0) ||
      cuMemMap(at, SIZE, 0, handle, 0))
    return 2;
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, retain, NULL);
  for (int round = 0; round < ROUNDS; round++) {
    expect(cuMemMap(at + SIZE, SIZE, 0, handle, 0));
    expect(cuMemUnmap(at + SIZE, SIZE));
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  expect(cuMemUnmap(at, SIZE));
  expect(cuMemRelease(handle));
  printf("%s: %d\n", argv[1], failed);
  fflush(stdout);
  return fgets(line, sizeof(line), stdin) ? 0 : 4;
}
