/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks through one family of device memory, step by step. Linked against the driver.
 *
 *   families FAMILY     after each step prints "STEP: RESULT" and waits for a line, so that a test can
 *                       look at the books of the driver and of the shim at that moment
 *
 * Before that it forks a child, in which CUDA does not work, and which changes nothing by trying.
 */
#include "families.h"

#include <sys/wait.h>

static void try_in_child(void) {
  CUdeviceptr pointer;
  int status;
  pid_t child = fork();
  if (child == 0)
    _exit(cuInit(0) != CUDA_ERROR_NOT_INITIALIZED ||
          cuMemAlloc_v2(&pointer, MIB) != CUDA_ERROR_NOT_INITIALIZED ||
          cuCtxSynchronize() != CUDA_ERROR_NOT_INITIALIZED);
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
    exit(6);
}

void step(const char *name, CUresult result) {
  char line[64];
  printf("%s: %d\n", name, result);
  fflush(stdout);
  try_in_child();
  if (!fgets(line, sizeof(line), stdin))
    exit(4);
}

CUcontext begin(void) {
  CUcontext context = NULL;
  step("init", cuInit(0));
  step("context", cuDevicePrimaryCtxRetain(&context, 0));
  step("current", cuCtxSetCurrent(context));
  return context;
}

CUmemPoolProps on_device(void) {
  CUmemPoolProps props;
  memset(&props, 0, sizeof(props));
  props.allocType = 1;
  props.location.type = 1;
  return props;
}

CUmemAllocationProp physical(void) {
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof(prop));
  prop.type = 1;
  prop.location.type = 1;
  return prop;
}

struct family {
  const char *name;
  void (*walk)(void);
};

static const struct family families[] = {
    {"default_pool", default_pool},
    {"own_pools", own_pools},
    {"destroyed_pool", destroyed_pool},
    {"vmm", vmm},
    {"many_mappings", many_mappings},
    {"exported", exported},
    {"multicast", multicast},
    {"linear", linear},
    {"freed_late", freed_late},
    {"contexts", contexts},
    {"limits", limits},
    {"green", green},
    {"managed", managed},
    {"arrays", arrays},
    {"graphs", graphs},
    {"captured", captured},
    {"ipc", ipc},
    {"external", external},
    {"checkpointed", checkpointed},
    {"attached", attached},
    {"code", code},
};

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && argc == 2; i++)
    if (!strcmp(argv[1], families[i].name)) {
      families[i].walk();
      return 0;
    }
  return 2;
}
