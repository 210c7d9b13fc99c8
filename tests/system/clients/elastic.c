/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant's program that holds as much GPU memory as it may, up to `elastic MIB`, and says when the size of
 * its GPU changes. On SIGUSR1 it gives all of it back and holds none from then on. One JSON object a line.
 */
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE_BYTES (2UL << 20)
#define MAX_PAGES  65536
#define PERIOD_US  50000

static volatile sig_atomic_t let_go;
static CUdeviceptr pages[MAX_PAGES];

static void on_signal(int number) {
  (void)number;
  let_go = 1;
}

static void check(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  printf("{\"event\": \"error\", \"what\": \"%s\", \"result\": %d}\n", what, (int)result);
  exit(1);
}

int main(int argc, char **argv) {
  size_t wanted = argc > 1 ? strtoul(argv[1], NULL, 10) / 2 : 0, held = 0, shown = 0, said = 0, total,
         free_bytes;
  CUdevice device;
  CUcontext context;

  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGUSR1, on_signal);
  check(cuInit(0), "cuInit");
  check(cuDeviceGet(&device, 0), "cuDeviceGet");
  check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  for (;;) {
    check(cuMemGetInfo(&free_bytes, &total), "cuMemGetInfo");
    if (total != shown) {
      shown = total;
      printf("{\"event\": \"total %zu\", \"held_mib\": %zu}\n", total >> 20, held * 2);
    }
    while (let_go && held > 0)
      check(cuMemFree(pages[--held]), "cuMemFree");
    while (!let_go && held < wanted && held < MAX_PAGES &&
           cuMemAlloc(&pages[held], PAGE_BYTES) == CUDA_SUCCESS)
      held++;
    if (held != said) {
      said = held;
      printf("{\"event\": \"%s\", \"held_mib\": %zu}\n",
             held == wanted ? "full"
             : held         ? "part"
                            : "empty",
             held * 2);
    }
    usleep(PERIOD_US);
  }
}
