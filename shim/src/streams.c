/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing is remembered: a handle may mean another stream tomorrow.
 */
#include "streams.h"

#include "hooks.h"

/* The context is made current for a moment: the first ABI of cuCtxGetDevice knows no other. */
static CUresult device_of_context(CUcontext context, CUdevice *device) {
  CUcontext popped;
  if (!AQ_REAL(cuCtxPushCurrent_v2) || !AQ_REAL(cuCtxPopCurrent_v2) || !AQ_REAL(cuCtxGetDevice))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuCtxPushCurrent_v2)(context);
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuCtxGetDevice)(device);
  AQ_REAL(cuCtxPopCurrent_v2)(&popped);
  return result;
}

CUresult aq_stream_device(CUstream stream, CUdevice *device) {
  CUcontext context = NULL;
  if ((uintptr_t)stream <= AQ_STREAM_HANDLES)
    return AQ_REAL(cuCtxGetDevice) ? AQ_REAL(cuCtxGetDevice)(device) : CUDA_ERROR_NOT_SUPPORTED;
  if (AQ_REAL(cuStreamGetDevice))
    return AQ_REAL(cuStreamGetDevice)(stream, device);
  if (!AQ_REAL(cuStreamGetCtx))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuStreamGetCtx)(stream, &context);
  return result == CUDA_SUCCESS ? device_of_context(context, device) : result;
}
