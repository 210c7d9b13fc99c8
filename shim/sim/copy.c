/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills, done when the call returns. What lies in device memory is
 * kept for the first 64 MiB that a process touches (space.h); beyond that,
 * ranges are checked, writes are dropped and reads give zeros.
 */
#include <string.h>

#include "managed.h"

enum place { HOST, DEVICE, EITHER };

/* The bytes behind an address; NULL for device memory that has none. False: not a range of that kind. */
static bool resolve(uintptr_t address, size_t size, enum place place, char **bytes) {
  struct memory_range range;
  *bytes = (char *)address;
  if (place == HOST) {
    return address;
  }
  if (!memory_locate(address, &range)) {
    return place != DEVICE && address && !space_find(address); /* what is not the driver's is the host's */
  }
  space_back_part(range.base, range.size, range.host, range.backing);
  if (*range.backing != SPACE_BACKED) {
    *bytes = NULL;
  }
  return size <= range.size - (address - range.base);
}

static CUresult enter_context(CUcontext *context) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = context_current(context);
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

/* Who writes to managed memory by the driver brings it to the GPU. */
static void touch(CUcontext context, uintptr_t address, size_t size) {
  struct managed *managed = managed_around(address, size);
  if (managed) {
    managed_touch(managed, address, size, context->gpu);
  }
}

static CUresult copy(uintptr_t to, enum place to_place, uintptr_t from, enum place from_place, size_t size) {
  CUcontext context;
  CUresult result = enter_context(&context);
  char *target;
  char *source;
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (size == 0) {
    return driver_leave(CUDA_SUCCESS);
  }
  if (!resolve(to, size, to_place, &target) || !resolve(from, size, from_place, &source)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (to_place != HOST) {
    touch(context, to, size);
  }
  if (target && source) {
    memmove(target, source, size);
  } else if (target) {
    memset(target, 0, size);
  }
  return driver_leave(CUDA_SUCCESS);
}

static CUresult to_device(uintptr_t to, const void *from, size_t size) {
  return copy(to, DEVICE, (uintptr_t)from, HOST, size);
}

static CUresult to_host(void *to, uintptr_t from, size_t size) {
  return copy((uintptr_t)to, HOST, from, DEVICE, size);
}

static CUresult within_device(uintptr_t to, uintptr_t from, size_t size) {
  return copy(to, DEVICE, from, DEVICE, size);
}

static CUresult anywhere(uintptr_t to, uintptr_t from, size_t size) {
  return copy(to, EITHER, from, EITHER, size);
}

static CUresult fill(uintptr_t to, const void *pattern, size_t width, size_t count) {
  CUcontext context;
  CUresult result = enter_context(&context);
  char *bytes = NULL;
  size_t size;
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (__builtin_mul_overflow(width, count, &size) || to % width != 0 ||
      (size > 0 && !resolve(to, size, DEVICE, &bytes))) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (size > 0) {
    touch(context, to, size);
  }
  for (size_t i = 0; bytes && i < count; i++) {
    memcpy(bytes + i * width, pattern, width);
  }
  return driver_leave(CUDA_SUCCESS);
}

/* Every entry point comes for the legacy stream, for the thread's own, and asynchronous for both. */
#define COPIES(NAME, TARGET, SOURCE, DO)                                                                     \
  CUresult NAME##_v2(TARGET to, SOURCE from, size_t size) {                                                  \
    return DO;                                                                                               \
  }                                                                                                          \
  CUresult NAME##_v2_ptds(TARGET to, SOURCE from, size_t size) {                                             \
    return DO;                                                                                               \
  }                                                                                                          \
  CUresult NAME##Async_v2(TARGET to, SOURCE from, size_t size, CUstream stream) {                            \
    return (void)stream, DO;                                                                                 \
  }                                                                                                          \
  CUresult NAME##Async_v2_ptsz(TARGET to, SOURCE from, size_t size, CUstream stream) {                       \
    return (void)stream, DO;                                                                                 \
  }

COPIES(cuMemcpyHtoD, CUdeviceptr, const void *, to_device(to, from, size))
COPIES(cuMemcpyDtoH, void *, CUdeviceptr, to_host(to, from, size))
COPIES(cuMemcpyDtoD, CUdeviceptr, CUdeviceptr, within_device(to, from, size))

CUresult cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned int size) {
  return to_device(to, from, size);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int size) {
  return to_host(to, from, size);
}
CUresult cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int size) {
  return within_device(to, from, size);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return anywhere(to, from, size);
}
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return anywhere(to, from, size);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return (void)stream, anywhere(to, from, size);
}
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return (void)stream, anywhere(to, from, size);
}

#define FILLS(NAME, VALUE)                                                                                   \
  CUresult NAME##_v2(CUdeviceptr to, VALUE value, size_t count) {                                            \
    return fill(to, &value, sizeof value, count);                                                            \
  }                                                                                                          \
  CUresult NAME##_v2_ptds(CUdeviceptr to, VALUE value, size_t count) {                                       \
    return fill(to, &value, sizeof value, count);                                                            \
  }                                                                                                          \
  CUresult NAME##Async(CUdeviceptr to, VALUE value, size_t count, CUstream stream) {                         \
    return (void)stream, fill(to, &value, sizeof value, count);                                              \
  }                                                                                                          \
  CUresult NAME##Async_ptsz(CUdeviceptr to, VALUE value, size_t count, CUstream stream) {                    \
    return (void)stream, fill(to, &value, sizeof value, count);                                              \
  }                                                                                                          \
  CUresult NAME(CUdeviceptr_v1 to, VALUE value, unsigned int count) {                                        \
    return fill(to, &value, sizeof value, count);                                                            \
  }

FILLS(cuMemsetD8, unsigned char)
FILLS(cuMemsetD16, unsigned short)
FILLS(cuMemsetD32, unsigned int)
