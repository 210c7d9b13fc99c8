/* SPDX-License-Identifier: Apache-2.0
 *
 * A hammer: takes and gives back memory at random, never holding more than its
 * allowance, until it is killed or has made its number of rounds.
 *
 *   storm THREADS ALLOWANCE_MIB ROUNDS(0 = for ever) [COUNTER_FILE]
 *
 * The counter file shows progress: 8 bytes, one more per round.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *address, size_t size);
int cuMemFree_v2(uint64_t address);

#define HELD 16

static size_t allowance; /* of one thread */
static unsigned long rounds;
static void *context;
static _Atomic uint64_t nowhere;
static _Atomic uint64_t *counter = &nowhere;

static void fail(const char *what, int code) {
  fprintf(stderr, "storm: %s: %d\n", what, code);
  _exit(1);
}

static void *hammer(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument ^ (unsigned)getpid();
  struct {
    uint64_t address;
    size_t size;
  } held[HELD] = {{0, 0}};
  size_t sum = 0;
  cuCtxSetCurrent(context);
  for (unsigned long round = 0; rounds == 0 || round < rounds; round++) {
    unsigned at = (unsigned)rand_r(&seed) % HELD;
    if (held[at].size) {
      int code = cuMemFree_v2(held[at].address);
      if (code != 0) {
        fail("cuMemFree", code);
      }
      sum -= held[at].size;
      held[at].size = 0;
    }
    size_t size = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 2 ? 4096 : allowance);
    if (sum + size <= allowance) {
      int code = cuMemAlloc_v2(&held[at].address, size);
      if (code == 0) {
        held[at].size = size;
        sum += size;
      } else if (code != 2) {
        fail("cuMemAlloc", code);
      }
    }
    atomic_fetch_add(counter, 1);
  }
  for (unsigned at = 0; at < HELD; at++) {
    if (held[at].size && cuMemFree_v2(held[at].address) != 0) {
      fail("cuMemFree at the end", 1);
    }
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[64];
  int count = argc > 3 ? atoi(argv[1]) : 0;
  if (count < 1 || count > 64) {
    fail("usage: storm THREADS ALLOWANCE_MIB ROUNDS [COUNTER_FILE]", 2);
  }
  allowance = ((size_t)atol(argv[2]) << 20) / (size_t)count;
  rounds = strtoul(argv[3], NULL, 10);
  if (argc > 4) {
    int fd = open(argv[4], O_RDWR | O_CLOEXEC);
    void *map = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
      fail("counter file", 1);
    }
    counter = map;
  }
  int code = cuInit(0);
  code = code ? code : cuDevicePrimaryCtxRetain(&context, 0);
  if (code != 0) {
    fail("start", code);
  }
  for (int i = 0; i < count; i++) {
    pthread_create(&threads[i], NULL, hammer, (void *)(uintptr_t)(i + 1));
  }
  for (int i = 0; i < count; i++) {
    pthread_join(threads[i], NULL);
  }
  return 0;
}
