/* SPDX-License-Identifier: Apache-2.0
 *
 * swarm THREADS: so many threads of one process, a few at a time. Each lives for one allocation of each of
 * two kinds, and its last free is another thread's. Refusals are counted and printed.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver_api.h"

CUresult cuCtxSetCurrent(CUcontext context);

enum { AT_ONCE = 8, BYTES = 3 << 20 };

static CUcontext context;
static CUdeviceptr left; /* by a thread that has ended */
static unsigned long refused;

static void must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "swarm: %s: %d\n", what, result);
  exit(1);
}

/* OUT_OF_MEMORY is an answer, anything else is not. */
static bool given(CUresult result, const char *what) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
  else
    must(result, what);
  return result == CUDA_SUCCESS;
}

static void *live(void *unused) {
  CUdeviceptr one, two;
  must(cuCtxSetCurrent(context), "current");
  if (given(cuMemAllocAsync(&two, BYTES, NULL), "async"))
    must(cuMemFreeAsync(two, NULL), "async free");
  if (!given(cuMemAlloc_v2(&one, BYTES), "alloc"))
    return unused;
  CUdeviceptr other = __atomic_exchange_n(&left, one, __ATOMIC_SEQ_CST);
  if (other)
    must(cuMemFree_v2(other), "free");
  return unused;
}

int main(int argc, char **argv) {
  pthread_t threads[AT_ONCE];
  must(cuInit(0), "init");
  must(cuDevicePrimaryCtxRetain(&context, 0), "context");
  for (int begun = 0; argc == 2 && begun < atoi(argv[1]); begun += AT_ONCE) {
    for (int i = 0; i < AT_ONCE; i++)
      if (pthread_create(&threads[i], NULL, live, NULL) != 0)
        return 2;
    for (int i = 0; i < AT_ONCE; i++)
      pthread_join(threads[i], NULL);
  }
  must(cuCtxSetCurrent(context), "current");
  must(left ? cuMemFree_v2(left) : CUDA_SUCCESS, "last free");
  must(cuCtxSynchronize(), "synchronise"); /* the pool goes back */
  printf("%lu\n", refused);
  fflush(stdout);
  getchar();
  return 0;
}
