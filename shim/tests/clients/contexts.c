/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes and ends contexts as fast as it can, in many threads. Linked against the driver.
 *
 *   contexts made THREADS ROUNDS BYTES     each with an allocation of BYTES
 *   contexts primary THREADS ROUNDS BYTES  all threads retain and release the primary context
 *
 * Prints: taken refused failed
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_api.h"

struct worker {
  pthread_t thread;
  unsigned long rounds;
  size_t bytes;
  unsigned long taken, refused, failed;
};

static void count(struct worker *worker, CUresult result) {
  worker->taken += result == CUDA_SUCCESS;
  worker->refused += result == CUDA_ERROR_OUT_OF_MEMORY;
  worker->failed += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
}

static void *make(void *data) {
  struct worker *worker = data;
  for (unsigned long round = 0; round < worker->rounds; round++) {
    CUcontext context;
    CUdeviceptr pointer;
    CUresult result = cuCtxCreate_v2(&context, 0, 0);
    if (result != CUDA_SUCCESS) { /* others' announcements may be too many for a moment */
      count(worker, result);
      continue;
    }
    count(worker, cuMemAlloc_v2(&pointer, worker->bytes));
    worker->failed += cuCtxDestroy_v2(context) != CUDA_SUCCESS;
  }
  return NULL;
}

static void *retain(void *data) {
  struct worker *worker = data;
  for (unsigned long round = 0; round < worker->rounds; round++) {
    CUcontext context;
    CUresult result = cuDevicePrimaryCtxRetain(&context, 0);
    count(worker, result);
    if (result == CUDA_SUCCESS)
      worker->failed += cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS;
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 5)
    return 2;
  int threads = atoi(argv[2]);
  struct worker *workers = calloc((size_t)threads, sizeof(*workers));
  if (!workers || cuInit(0) != CUDA_SUCCESS)
    return 3;
  for (int i = 0; i < threads; i++) {
    workers[i].rounds = strtoul(argv[3], NULL, 0);
    workers[i].bytes = strtoul(argv[4], NULL, 0);
    pthread_create(&workers[i].thread, NULL, strcmp(argv[1], "made") ? retain : make, &workers[i]);
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
