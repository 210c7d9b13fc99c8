/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes and gives memory as fast as it can, in many threads, close to a limit. Linked against
 * the driver.
 *
 *   hammer THREADS ROUNDS LARGEST SEED   prints: taken refused failed
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver_api.h"

enum { HELD = 16 };

CUresult cuCtxSetCurrent(CUcontext context);

struct worker {
  pthread_t thread;
  CUcontext context;
  unsigned long rounds;
  size_t largest;
  uint64_t random;
  unsigned long taken, refused, failed;
};

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static void *work(void *data) {
  struct worker *worker = data;
  CUdeviceptr held[HELD] = {0};
  worker->failed += cuCtxSetCurrent(worker->context) != CUDA_SUCCESS;
  for (unsigned long round = 0; round < worker->rounds; round++) {
    CUdeviceptr *place = &held[next(&worker->random) % HELD];
    if (*place) {
      worker->failed += cuMemFree_v2(*place) != CUDA_SUCCESS;
      *place = 0;
      continue;
    }
    CUresult result = cuMemAlloc_v2(place, 1 + next(&worker->random) % worker->largest);
    worker->taken += result == CUDA_SUCCESS;
    worker->refused += result == CUDA_ERROR_OUT_OF_MEMORY;
    worker->failed += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (int i = 0; i < HELD; i++)
    if (held[i])
      worker->failed += cuMemFree_v2(held[i]) != CUDA_SUCCESS;
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 5)
    return 2;
  int threads = atoi(argv[1]);
  struct worker *workers = calloc((size_t)threads, sizeof(*workers));
  CUcontext context;
  if (!workers || cuInit(0) != CUDA_SUCCESS)
    return 3;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  while (result == CUDA_ERROR_OUT_OF_MEMORY) /* others' announcements may be too many for a moment */
    result = cuDevicePrimaryCtxRetain(&context, 0);
  if (result != CUDA_SUCCESS)
    return 4;
  for (int i = 0; i < threads; i++) {
    workers[i].context = context;
    workers[i].rounds = strtoul(argv[2], NULL, 0);
    workers[i].largest = strtoul(argv[3], NULL, 0);
    workers[i].random = strtoul(argv[4], NULL, 0) * 1000003 + (uint64_t)i + 1;
    pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  }
  struct worker sum = {0};
  for (int i = 0; i < threads; i++) {
    pthread_join(workers[i].thread, NULL);
    sum.taken += workers[i].taken;
    sum.refused += workers[i].refused;
    sum.failed += workers[i].failed;
  }
  printf("%lu %lu %lu\n", sum.taken, sum.refused, sum.failed);
  free(workers);
  return 0;
}
