/* SPDX-License-Identifier: Apache-2.0
 *
 * A program linked against the driver: prints what an allocation of 1 TiB answers.
 */
#include <stdio.h>

#include "driver_api.h"

int main(void) {
  CUcontext context;
  CUdeviceptr pointer;
  CUresult result = cuInit(0);
  if (result == CUDA_SUCCESS)
    result = cuCtxCreate_v2(&context, 0, 0);
  if (result == CUDA_SUCCESS)
    result = cuMemAlloc_v2(&pointer, 1ULL << 40);
  printf("%d\n", result);
  return 0;
}
