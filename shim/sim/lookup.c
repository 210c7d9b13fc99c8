/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding entry points by name and version, and naming errors.
 */
#include "lookup.h"

#include <string.h>

#include "driver.h"
#include "profiles.h"

/* First row with this base name, or the count. */
static unsigned first_row(const char *base) {
  unsigned low = 0;
  unsigned high = sim_entry_point_count;
  while (low < high) {
    unsigned middle = low + (high - low) / 2;
    if (strcmp(sim_entry_points[middle].base, base) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static void (*find(const char *base, int version, bool per_thread,
                   CUdriverProcAddressQueryResult *status))(void) {
  void (*legacy)(void) = NULL;
  void (*threaded)(void) = NULL;
  bool known = false;
  for (unsigned row = first_row(base); row < sim_entry_point_count; row++) {
    const struct sim_entry_point *entry = &sim_entry_points[row];
    if (strcmp(entry->base, base) != 0) {
      break;
    }
    known = true;
    if (entry->version <= version) {
      *(entry->stream == SIM_STREAM_PER_THREAD ? &threaded : &legacy) = entry->function;
    }
  }
  void (*found)(void) = per_thread && threaded ? threaded : legacy;
  *status = found   ? CU_GET_PROC_ADDRESS_SUCCESS
            : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return found;
}

/* Works before cuInit. cuda.h: a version beyond the driver's own is an invalid value. */
static CUresult look_up(const char *symbol, void **pfn, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status, void (**found)(void)) {
  const cuuint64_t both = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (!symbol || !pfn || flags >= both || version < 0 || version > driver_cuda_version()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *found = find(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
  return CUDA_SUCCESS;
}

/* The ABI of CUDA 11.3: an error tells that there is nothing. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status;
  void (*found)(void);
  CUresult result = look_up(symbol, pfn, cudaVersion, flags, &status, &found);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!found) {
    return CUDA_ERROR_NOT_FOUND;
  }
  memcpy(pfn, &found, sizeof found);
  return CUDA_SUCCESS;
}

/* The ABI of CUDA 12.0: success, NULL and a status tell that there is nothing. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus) {
  CUdriverProcAddressQueryResult status;
  void (*found)(void);
  CUresult result = look_up(symbol, pfn, cudaVersion, flags, &status, &found);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  memcpy(pfn, &found, sizeof found);
  if (symbolStatus) {
    *symbolStatus = status;
  }
  return CUDA_SUCCESS;
}

struct error_name {
  CUresult error;
  const char *name;
  const char *text;
};

/* Texts are ours. */
static const struct error_name error_names[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
     "execution affinity is not supported"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error_name *describe(CUresult error) {
  for (size_t i = 0; i < sizeof error_names / sizeof *error_names; i++) {
    if (error_names[i].error == error) {
      return &error_names[i];
    }
  }
  return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **pStr) {
  const struct error_name *found = describe(error);
  if (!pStr || !found) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *pStr = found->name;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **pStr) {
  const struct error_name *found = describe(error);
  if (!pStr || !found) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *pStr = found->text;
  return CUDA_SUCCESS;
}
