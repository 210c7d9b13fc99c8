/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes contexts, code and memory until there is no more, a phase for each line that it is sent. Linked
 * against the driver.
 *
 *   growing SEED        grow N     N times a context, a module and a first launch, or memory, in any order;
 *                                  memory is given back as well, contexts and code are kept
 *                       fill       memory, until none is left
 *                       ask        512 bytes, a context, a module
 *                       give       all of its memory back
 *                       hammer N   N times memory taken or given back
 *
 * Answers each with: how much it got of what it asked for, how often it was refused, and how often something
 * else failed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_api.h"

enum { HELD = 4096, MOST_CONTEXTS = 2, MOST_MODULES = 6 };
#define PAGE (2ULL << 20)

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);

static const char code[] = ".version 8.0\n.entry grow_3mib() { ret; }\n";
static CUdeviceptr held[HELD];
static unsigned count, contexts, modules, got, refused, failed;
static uint64_t dice;

static uint64_t next(void) {
  dice ^= dice << 13;
  dice ^= dice >> 7;
  dice ^= dice << 17;
  return dice;
}

static int note(CUresult result) {
  got += result == CUDA_SUCCESS;
  refused += result == CUDA_ERROR_OUT_OF_MEMORY;
  failed += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
  return result == CUDA_SUCCESS;
}

static int take(size_t bytes) {
  if (count == HELD || !note(cuMemAlloc_v2(&held[count], bytes)))
    return 0;
  count++;
  return 1;
}

static void give(void) {
  unsigned i = (unsigned)(next() % count--);
  failed += cuMemFree_v2(held[i]) != CUDA_SUCCESS;
  held[i] = held[count];
}

static void take_or_give(void) {
  if (count > 0 && next() % 5 < 2)
    give();
  else
    take((1 + next() % 4) * PAGE);
}

static void make_context(void) {
  CUcontext made, popped;
  if (note(cuCtxCreate_v2(&made, 0, 0))) {
    contexts++;
    failed += cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS;
  }
}

static void load_and_launch(void) {
  CUmodule module;
  CUfunction function;
  if (!note(cuModuleLoadData(&module, code)))
    return;
  modules++;
  failed += cuModuleGetFunction(&function, module, "grow_3mib") != CUDA_SUCCESS ||
            cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) != CUDA_SUCCESS;
}

static void grow(unsigned long rounds) {
  while (rounds-- > 0) {
    uint64_t kind = next() % 16;
    if (kind == 0 && contexts < MOST_CONTEXTS)
      make_context();
    else if (kind == 1 && modules < MOST_MODULES)
      load_and_launch();
    else
      take_or_give();
  }
}

int main(int argc, char **argv) {
  char line[64];
  CUcontext context;
  dice = argc > 1 ? strtoul(argv[1], NULL, 0) * 1000003 + 1 : 1;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 3;
  printf("begun\n");
  fflush(stdout);
  while (fgets(line, sizeof(line), stdin)) {
    char *rest = strchr(line, ' ');
    unsigned long rounds = rest ? strtoul(rest, NULL, 0) : 0;
    got = refused = failed = 0;
    if (!strncmp(line, "grow", 4))
      grow(rounds);
    else if (!strncmp(line, "hammer", 6))
      while (rounds-- > 0)
        take_or_give();
    else if (!strncmp(line, "fill", 4))
      while (take(PAGE))
        ;
    else if (!strncmp(line, "give", 4))
      while (count > 0)
        give();
    else if (!strncmp(line, "ask", 3)) {
      take(512);
      make_context();
      load_and_launch();
    }
    printf("%u %u %u\n", got, refused, failed);
    fflush(stdout);
  }
  return cuCtxSynchronize() == CUDA_SUCCESS ? 0 : 4;
}
