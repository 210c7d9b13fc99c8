/* SPDX-License-Identifier: Apache-2.0
 *
 * What CUDA says about memory: the share's size and what is free of it.
 */
#include "books.h"
#include "hooks.h"
#include "leaving.h"
#include "state.h"

AQ_HOT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  struct aq_here here;
  size_t free_now = 0;
  size_t total_now = 0;
  if (!AQ_REAL(cuMemGetInfo_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !aq_is_ready())
    return AQ_REAL(cuMemGetInfo_v2)(free, total);
  CUresult result = AQ_REAL(cuMemGetInfo_v2)(free ? &free_now : NULL, total ? &total_now : NULL);
  if (result == CUDA_SUCCESS)
    result = aq_here(&here);
  if (result != CUDA_SUCCESS)
    return result;
  aq_leaving_settle();
  struct aq_view view = aq_view(here.share, total_now, free_now);
  if (free)
    *free = (size_t)view.free;
  if (total)
    *total = (size_t)view.total;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
  struct aq_here here;
  unsigned int free_now = 0;
  unsigned int total_now = 0;
  if (!AQ_REAL(cuMemGetInfo))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !aq_is_ready())
    return AQ_REAL(cuMemGetInfo)(free, total);
  CUresult result = AQ_REAL(cuMemGetInfo)(free ? &free_now : NULL, total ? &total_now : NULL);
  if (result == CUDA_SUCCESS)
    result = aq_here(&here);
  if (result != CUDA_SUCCESS)
    return result;
  aq_leaving_settle();
  struct aq_view view = aq_view(here.share, total_now, free_now);
  if (free)
    *free = (unsigned int)view.free;
  if (total)
    *total = (unsigned int)view.total;
  return CUDA_SUCCESS;
}

/* A GPU without a share shows its size like any other; its contexts are refused. */
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  if (!AQ_REAL(cuDeviceTotalMem_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuDeviceTotalMem_v2)(bytes, dev);
  const struct aq_share *share = aq_depth == 0 ? aq_device_share(dev) : NULL;
  if (result == CUDA_SUCCESS && bytes && share)
    *bytes = (size_t)aq_view_total(share, *bytes);
  return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
  if (!AQ_REAL(cuDeviceTotalMem))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuDeviceTotalMem)(bytes, dev);
  const struct aq_share *share = aq_depth == 0 ? aq_device_share(dev) : NULL;
  if (result == CUDA_SUCCESS && bytes && share)
    *bytes = (unsigned int)aq_view_total(share, *bytes);
  return result;
}
