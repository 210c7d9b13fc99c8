/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools in several threads at once. Linked against the driver.
 *
 *   pools WAY     at the end prints "WAY: RESULT" and waits for a line, so that a test can look at the books
 *                 first      all threads take of a pool that nobody has used before
 *                 switched   one thread sets the device's pool while others take of it
 *                 destroyed  one makes and destroys pools while others synchronise
 *                 code       loads code beside a pool with memory in store
 *                 reused     takes, frees, trims and synchronises at random, so that addresses come again:
 * one thread, then all
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "driver_api.h"

enum { THREADS = 4, ROUNDS = 3000, DIFFERS = 9999 };
#define MIB (1ULL << 20)

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);

static CUcontext context;
static CUmemoryPool pools[2];
static pthread_barrier_t start;
static int failed;
static int over; /* the thread that the others accompany has ended */

static void expect(CUresult result) {
  if (result != CUDA_SUCCESS)
    __atomic_store_n(&failed, result, __ATOMIC_RELAXED);
}

static CUmemoryPool new_pool(void) {
  CUmemoryPool pool = NULL;
  CUmemPoolProps props;
  memset(&props, 0, sizeof(props));
  props.allocType = props.location.type = 1;
  expect(cuMemPoolCreate(&pool, &props));
  return pool;
}

static void enter(CUstream *stream) {
  expect(cuCtxSetCurrent(context));
  expect(cuStreamCreate(stream, 1));
  pthread_barrier_wait(&start);
}

static void *take_first(void *unused) {
  CUdeviceptr pointer;
  CUstream stream;
  enter(&stream);
  expect(cuMemAllocAsync(&pointer, MIB, stream));
  return unused;
}

/* A round begins and ends for all at once. */
static void *take_each_round(void *unused) {
  CUdeviceptr pointer;
  CUstream stream;
  enter(&stream);
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&start);
    expect(cuMemAllocAsync(&pointer, MIB, stream));
    expect(cuMemFreeAsync(pointer, stream));
    expect(cuStreamSynchronize(stream));
    pthread_barrier_wait(&start);
  }
  return unused;
}

static void *synchronise(void *unused) {
  CUstream stream;
  enter(&stream);
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE))
    expect(cuStreamSynchronize(stream));
  return unused;
}

static uint64_t reserved(CUmemoryPool pool) {
  uint64_t bytes = 0;
  expect(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}

/* What the share's processes are charged with; there is no estimate for their contexts. */
static uint64_t charged(void) {
  size_t total = 0, unused = 0;
  expect(cuMemGetInfo_v2(&unused, &total));
  return total - unused;
}

static void expect_exact_books(void) {
  if (charged() != reserved(pools[0]) + reserved(pools[1]))
    expect(DIFFERS);
}

static void set_pools(void) {
  CUdeviceptr pointer;
  for (int round = 0; round < ROUNDS; round++) {
    pthread_barrier_wait(&start);
    expect(cuDeviceSetMemPool(0, pools[round % 2]));
    pthread_barrier_wait(&start);
    expect(cuMemAllocAsync(&pointer, 100 * MIB, NULL));
    expect_exact_books();
    expect(cuMemFreeAsync(pointer, NULL));
    expect(cuStreamSynchronize(NULL));
  }
}

/* The last pointer of a pool goes in one thread while the pool itself goes in another. */
static void *give(void *pointer) {
  expect(cuCtxSetCurrent(context));
  expect(cuMemFree_v2(*(CUdeviceptr *)pointer));
  return NULL;
}

static void destroy_pools(void) {
  uint64_t threshold = 1ULL << 40;
  for (int round = 0; round < ROUNDS; round++) {
    CUdeviceptr pointer;
    pthread_t other;
    CUmemoryPool pool = new_pool();
    expect(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    expect(cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL));
    expect(cuMemFreeAsync(pointer, NULL));
    expect(cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL));
    pthread_create(&other, NULL, give, &pointer);
    expect(cuMemPoolDestroy(pool));
    pthread_join(other, NULL);
  }
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
}

/* What a pool keeps for the program stays there when code is loaded, but where there is no room. */
static void load_code(void) {
  static const char code[] = ".version 8.0\n.target sm_80\n.address_size 64\n";
  uint64_t threshold = 1ULL << 40;
  CUmemoryPool pool = new_pool();
  CUdeviceptr pointer;
  CUmodule module;
  expect(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  expect(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
  expect(cuMemFreeAsync(pointer, NULL));
  expect(cuCtxSynchronize());
  uint64_t before = reserved(pool);
  expect(cuModuleLoadData(&module, code));
  if (before < 64 * MIB || reserved(pool) != before)
    expect(DIFFERS);
  while (cuMemAlloc_v2(&pointer, 64 * MIB) == CUDA_SUCCESS && reserved(pool) == before)
    continue; /* the last one takes what the pool had kept */
  expect(cuMemFree_v2(pointer));
  expect(cuMemAllocFromPoolAsync(&pointer, 64 * MIB, pool, NULL));
  expect(cuMemFreeAsync(pointer, NULL));
  expect(cuCtxSynchronize());
  expect(cuModuleLoadData(&module, code)); /* full, but for what the pool keeps */
}

static uint32_t random_below(uint32_t bound) {
  static uint32_t seeds;
  static _Thread_local uint32_t state;
  if (!state)
    state = __atomic_add_fetch(&seeds, 1, __ATOMIC_RELAXED);
  state = state * 1664525 + 1013904223;
  return (state >> 8) % bound;
}

/* In pieces: what comes next often lies where something was before, and sometimes fits nowhere. Two pools
 * have each other's addresses in turn. `check`: after each step, NULL: nothing. */
static void reuse(void (*check)(void)) {
  enum { LIVE = 24, KINDS = 6 };
  static const uint64_t sizes[KINDS] = {4096, MIB, 7 * MIB, 20 * MIB, 33 * MIB, 70 * MIB};
  CUdeviceptr live[LIVE] = {0};
  for (int round = 0; round < ROUNDS; round++) {
    CUdeviceptr *at = &live[random_below(LIVE)];
    uint32_t what = random_below(40);
    if (*at) {
      expect(cuMemFreeAsync(*at, NULL));
      *at = 0;
    } else {
      expect(cuMemAllocFromPoolAsync(at, sizes[random_below(KINDS)], pools[random_below(8) == 0], NULL));
    }
    if (what == 0)
      expect(cuStreamSynchronize(NULL));
    else if (what == 1)
      expect(cuMemPoolTrimTo(pools[random_below(2)], random_below(100) * MIB));
    if (check)
      check();
  }
}

static void *reuse_beside_others(void *unused) {
  expect(cuCtxSetCurrent(context));
  pthread_barrier_wait(&start);
  reuse(NULL);
  return unused;
}

static void accompanied(void (*walk)(void), void *(*others)(void *)) {
  pthread_t threads[THREADS];
  pthread_barrier_init(&start, NULL, walk ? THREADS + 1 : THREADS);
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, others, NULL);
  if (walk) {
    pthread_barrier_wait(&start);
    walk();
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
  char line[8];
  if (argc != 2 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
    return 2;
  if (!strcmp(argv[1], "first")) {
    accompanied(NULL, take_first);
  } else if (!strcmp(argv[1], "switched")) {
    pools[0] = new_pool();
    pools[1] = new_pool();
    accompanied(set_pools, take_each_round);
  } else if (!strcmp(argv[1], "destroyed")) {
    accompanied(destroy_pools, synchronise);
  } else if (!strcmp(argv[1], "code")) {
    load_code();
  } else if (!strcmp(argv[1], "reused")) {
    pools[0] = new_pool();
    pools[1] = new_pool();
    reuse(expect_exact_books);
    accompanied(NULL, reuse_beside_others);
    expect_exact_books();
  }
  printf("%s: %d\n", argv[1], failed);
  fflush(stdout);
  return fgets(line, sizeof(line), stdin) ? 0 : 4;
}
