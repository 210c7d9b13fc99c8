/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills of one row.
 */
#include "copy.h"

static const struct copy_order at_once = {0};
static const struct copy_order at_once_ptds = {.per_thread = true};

static struct copy_order in(CUstream stream) {
  return (struct copy_order){.asynchronous = true, .stream = stream};
}
static struct copy_order in_ptsz(CUstream stream) {
  return (struct copy_order){.asynchronous = true, .per_thread = true, .stream = stream};
}

static CUresult row(CUmemorytype to_type, uintptr_t to, CUmemorytype from_type, uintptr_t from, size_t size,
                    struct copy_order order) {
  CUDA_MEMCPY3D copy = {.srcMemoryType = from_type,
                        .srcHost = (const void *)from,
                        .srcDevice = from,
                        .dstMemoryType = to_type,
                        .dstHost = (void *)to,
                        .dstDevice = to,
                        .WidthInBytes = size,
                        .Height = 1,
                        .Depth = 1};
  return copy_call(&copy, order);
}

static CUresult to_device(uintptr_t to, const void *from, size_t size, struct copy_order order) {
  return row(CU_MEMORYTYPE_DEVICE, to, CU_MEMORYTYPE_HOST, (uintptr_t)from, size, order);
}
static CUresult to_host(void *to, uintptr_t from, size_t size, struct copy_order order) {
  return row(CU_MEMORYTYPE_HOST, (uintptr_t)to, CU_MEMORYTYPE_DEVICE, from, size, order);
}
static CUresult within_device(uintptr_t to, uintptr_t from, size_t size, struct copy_order order) {
  return row(CU_MEMORYTYPE_DEVICE, to, CU_MEMORYTYPE_DEVICE, from, size, order);
}
static CUresult anywhere(uintptr_t to, uintptr_t from, size_t size, struct copy_order order) {
  return row(CU_MEMORYTYPE_UNIFIED, to, CU_MEMORYTYPE_UNIFIED, from, size, order);
}

/* Every entry point comes for the legacy stream, for the thread's own, and asynchronous for both. */
#define COPIES(NAME, TARGET, SOURCE, DO)                                                                     \
  CUresult NAME##_v2(TARGET to, SOURCE from, size_t size) {                                                  \
    return DO(to, from, size, at_once);                                                                      \
  }                                                                                                          \
  CUresult NAME##_v2_ptds(TARGET to, SOURCE from, size_t size) {                                             \
    return DO(to, from, size, at_once_ptds);                                                                 \
  }                                                                                                          \
  CUresult NAME##Async_v2(TARGET to, SOURCE from, size_t size, CUstream stream) {                            \
    return DO(to, from, size, in(stream));                                                                   \
  }                                                                                                          \
  CUresult NAME##Async_v2_ptsz(TARGET to, SOURCE from, size_t size, CUstream stream) {                       \
    return DO(to, from, size, in_ptsz(stream));                                                              \
  }

COPIES(cuMemcpyHtoD, CUdeviceptr, const void *, to_device)
COPIES(cuMemcpyDtoH, void *, CUdeviceptr, to_host)
COPIES(cuMemcpyDtoD, CUdeviceptr, CUdeviceptr, within_device)

CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned int size) {
  return to_device(to, from, size, at_once);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int size) {
  return to_host(to, from, size, at_once);
}
CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int size) {
  return within_device(to, from, size, at_once);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return anywhere(to, from, size, at_once);
}
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return anywhere(to, from, size, at_once_ptds);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return anywhere(to, from, size, in(stream));
}
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return anywhere(to, from, size, in_ptsz(stream));
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width,
                     size_t height, struct copy_order order) {
  CUDA_MEMSET_NODE_PARAMS params = {
      .dst = to, .pitch = pitch, .value = value, .elementSize = element, .width = width, .height = height};
  return fill_call(&params, order);
}

#define FILLS(BITS, VALUE)                                                                                   \
  CUresult cuMemsetD##BITS##_v2(CUdeviceptr to, VALUE value, size_t count) {                                 \
    return fill(to, 0, value, sizeof value, count, 1, at_once);                                              \
  }                                                                                                          \
  CUresult cuMemsetD##BITS##_v2_ptds(CUdeviceptr to, VALUE value, size_t count) {                            \
    return fill(to, 0, value, sizeof value, count, 1, at_once_ptds);                                         \
  }                                                                                                          \
  CUresult cuMemsetD##BITS##Async(CUdeviceptr to, VALUE value, size_t count, CUstream stream) {              \
    return fill(to, 0, value, sizeof value, count, 1, in(stream));                                           \
  }                                                                                                          \
  CUresult cuMemsetD##BITS##Async_ptsz(CUdeviceptr to, VALUE value, size_t count, CUstream stream) {         \
    return fill(to, 0, value, sizeof value, count, 1, in_ptsz(stream));                                      \
  }                                                                                                          \
  CUresult cuMemsetD##BITS(CUdeviceptr_v1 to, VALUE value, unsigned int count) {                             \
    return fill(to, 0, value, sizeof value, count, 1, at_once);                                              \
  }                                                                                                          \
  CUresult cuMemsetD2D##BITS##_v2(CUdeviceptr to, size_t pitch, VALUE value, size_t width, size_t height) {  \
    return fill(to, pitch, value, sizeof value, width, height, at_once);                                     \
  }                                                                                                          \
  CUresult cuMemsetD2D##BITS##_v2_ptds(CUdeviceptr to, size_t pitch, VALUE value, size_t width,              \
                                       size_t height) {                                                      \
    return fill(to, pitch, value, sizeof value, width, height, at_once_ptds);                                \
  }                                                                                                          \
  CUresult cuMemsetD2D##BITS##Async(CUdeviceptr to, size_t pitch, VALUE value, size_t width, size_t height,  \
                                    CUstream stream) {                                                       \
    return fill(to, pitch, value, sizeof value, width, height, in(stream));                                  \
  }                                                                                                          \
  CUresult cuMemsetD2D##BITS##Async_ptsz(CUdeviceptr to, size_t pitch, VALUE value, size_t width,            \
                                         size_t height, CUstream stream) {                                   \
    return fill(to, pitch, value, sizeof value, width, height, in_ptsz(stream));                             \
  }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)

/* --- rows of rows --- */

/* A copy of two dimensions is one of three that is one layer deep. */
static CUresult flat(const CUDA_MEMCPY2D *given, struct copy_order order) {
  if (!given) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUDA_MEMCPY3D copy = {.srcXInBytes = given->srcXInBytes,
                        .srcY = given->srcY,
                        .srcMemoryType = given->srcMemoryType,
                        .srcHost = given->srcHost,
                        .srcDevice = given->srcDevice,
                        .srcArray = given->srcArray,
                        .srcPitch = given->srcPitch,
                        .dstXInBytes = given->dstXInBytes,
                        .dstY = given->dstY,
                        .dstMemoryType = given->dstMemoryType,
                        .dstHost = given->dstHost,
                        .dstDevice = given->dstDevice,
                        .dstArray = given->dstArray,
                        .dstPitch = given->dstPitch,
                        .WidthInBytes = given->WidthInBytes,
                        .Height = given->Height,
                        .Depth = 1};
  return copy_call(&copy, order);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *pCopy) {
  return flat(pCopy, at_once);
}
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *pCopy) {
  return flat(pCopy, at_once_ptds);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *pCopy) {
  return flat(pCopy, at_once);
}
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *pCopy) {
  return flat(pCopy, at_once_ptds);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
  return flat(pCopy, in(hStream));
}
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
  return flat(pCopy, in_ptsz(hStream));
}

static CUresult deep(const CUDA_MEMCPY3D *copy, struct copy_order order) {
  return copy ? copy_call(copy, order) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *pCopy) {
  return deep(pCopy, at_once);
}
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *pCopy) {
  return deep(pCopy, at_once_ptds);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
  return deep(pCopy, in(hStream));
}
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
  return deep(pCopy, in_ptsz(hStream));
}
