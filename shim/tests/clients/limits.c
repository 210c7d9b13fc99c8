/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads set one limit of one context, up and down. Linked against the driver.
 *
 *   limits THREADS SETS ROUNDS    prints a line at the end of each round, and goes on when it gets one
 */
#include <pthread.h>

#include "families.h"

enum { MOST = 16 };

static CUcontext context;
static int sets;

static void *set(void *number) {
  unsigned dice = (unsigned)(uintptr_t)number * 2654435761U;
  cuCtxSetCurrent(context);
  for (int i = 0; i < sets; i++) {
    dice = dice * 1664525U + 1013904223U;
    cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (8 + (dice >> 16) % 64) * MIB);
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[MOST];
  char line[64];
  int count = argc == 4 ? atoi(argv[1]) : 0;
  if (count < 1 || count > MOST || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0))
    return 2;
  sets = atoi(argv[2]);
  for (int round = 0; round < atoi(argv[3]); round++) {
    for (int i = 0; i < count; i++)
      pthread_create(&threads[i], NULL, set, (void *)(uintptr_t)(round * count + i + 1));
    for (int i = 0; i < count; i++)
      pthread_join(threads[i], NULL);
    printf("done\n");
    fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
      return 1;
  }
  return 0;
}
