/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes and gives device memory of several families at random, in many threads, close to a limit.
 * Linked against the driver.
 *
 *   storm FAMILIES THREADS ROUNDS LARGEST SEED     FAMILIES: letters of "lmpova"
 *                                 prints: taken refused failed
 *                                 with ROUNDS 0 it goes on until it is killed
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_api.h"

enum { HELD = 16 };
#define PAGE (2ULL << 20)

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);

struct thing {
  char family; /* 0: nothing */
  CUdeviceptr pointer;
  CUmemGenericAllocationHandle handle;
  CUarray array;
};

struct worker {
  pthread_t thread;
  CUcontext context;
  const char *families;
  unsigned long rounds;
  size_t largest;
  uint64_t random;
  unsigned long taken, refused, failed;
};

static CUmemoryPool pool;

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

static CUresult take(struct thing *thing, char family, size_t bytes, CUstream stream) {
  CUmemAllocationProp prop;
  CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024, .Format = 0x20, .NumChannels = 4};
  memset(&prop, 0, sizeof(prop));
  prop.type = prop.location.type = 1;
  thing->family = family;
  switch (family) {
  case 'l': /* linear */
    return cuMemAlloc_v2(&thing->pointer, bytes);
  case 'm':
    return cuMemAllocManaged(&thing->pointer, bytes, 1);
  case 'p': /* the device's pool */
    return cuMemAllocAsync(&thing->pointer, bytes, stream);
  case 'o': /* a pool of one's own */
    return cuMemAllocFromPoolAsync(&thing->pointer, bytes, pool, stream);
  case 'v': /* virtual */
    return cuMemCreate(&thing->handle, (bytes + PAGE - 1) / PAGE * PAGE, &prop, 0);
  default: /* an array */
    shape.Height = bytes / 16384 + 1;
    return cuArray3DCreate_v2(&thing->array, &shape);
  }
}

static CUresult give(struct thing *thing, CUstream stream) {
  char family = thing->family;
  thing->family = 0;
  switch (family) {
  case 'p':
  case 'o':
    return cuMemFreeAsync(thing->pointer, stream);
  case 'v':
    return cuMemRelease(thing->handle);
  case 'a':
    return cuArrayDestroy(thing->array);
  default:
    return cuMemFree_v2(thing->pointer);
  }
}

static void *work(void *data) {
  struct worker *worker = data;
  struct thing held[HELD];
  CUstream stream = NULL;
  size_t families = strlen(worker->families);
  memset(held, 0, sizeof(held));
  worker->failed += cuCtxSetCurrent(worker->context) != CUDA_SUCCESS;
  worker->failed += cuStreamCreate(&stream, 1) != CUDA_SUCCESS;
  for (unsigned long round = 0; worker->rounds == 0 || round < worker->rounds; round++) {
    struct thing *thing = &held[next(&worker->random) % HELD];
    if (next(&worker->random) % 64 == 0)
      worker->failed += cuStreamSynchronize(stream) != CUDA_SUCCESS;
    if (thing->family) {
      worker->failed += give(thing, stream) != CUDA_SUCCESS;
      continue;
    }
    char family = worker->families[next(&worker->random) % families];
    CUresult result = take(thing, family, 1 + next(&worker->random) % worker->largest, stream);
    if (result != CUDA_SUCCESS)
      thing->family = 0;
    worker->taken += result == CUDA_SUCCESS;
    worker->refused += result == CUDA_ERROR_OUT_OF_MEMORY;
    worker->failed += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (int i = 0; i < HELD; i++)
    if (held[i].family)
      worker->failed += give(&held[i], stream) != CUDA_SUCCESS;
  worker->failed += cuStreamSynchronize(stream) != CUDA_SUCCESS;
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 6)
    return 2;
  int threads = atoi(argv[2]);
  struct worker *workers = calloc((size_t)threads, sizeof(*workers));
  CUcontext context;
  CUmemPoolProps props;
  memset(&props, 0, sizeof(props));
  props.allocType = props.location.type = 1;
  if (!workers || cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS || cuMemPoolCreate(&pool, &props) != CUDA_SUCCESS)
    return 3;
  for (int i = 0; i < threads; i++) {
    workers[i].context = context;
    workers[i].families = argv[1];
    workers[i].rounds = strtoul(argv[3], NULL, 0);
    workers[i].largest = strtoul(argv[4], NULL, 0);
    workers[i].random = strtoul(argv[5], NULL, 0) * 1000003 + (uint64_t)i + 1;
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
  return cuMemPoolDestroy(pool) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS ? 0 : 4;
}
