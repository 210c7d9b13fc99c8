/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints errno after each of a few calls; it was 77 before.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#include "driver_api.h"

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver)
    return 1;
  __typeof__(cuInit) *init = (__typeof__(cuInit) *)dlsym(driver, "cuInit");
  __typeof__(cuCtxCreate_v2) *create = (__typeof__(cuCtxCreate_v2) *)dlsym(driver, "cuCtxCreate_v2");
  __typeof__(cuMemAlloc_v2) *alloc = (__typeof__(cuMemAlloc_v2) *)dlsym(driver, "cuMemAlloc_v2");
  __typeof__(cuMemGetInfo_v2) *info = (__typeof__(cuMemGetInfo_v2) *)dlsym(driver, "cuMemGetInfo_v2");
  CUcontext context;
  CUdeviceptr pointer;
  size_t free_bytes, total_bytes;
  int seen[5];
  errno = 77;
  init(0);
  seen[0] = errno;
  create(&context, 0, 0);
  seen[1] = errno;
  alloc(&pointer, 4096);
  seen[2] = errno;
  alloc(&pointer, (size_t)500 << 20); /* fits; the next does not, after sweeping and waiting */
  alloc(&pointer, (size_t)500 << 20);
  seen[3] = errno;
  info(&free_bytes, &total_bytes);
  seen[4] = errno;
  for (int i = 0; i < 5; i++)
    printf("%d\n", seen[i]);
  return 0;
}
