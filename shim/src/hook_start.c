/* SPDX-License-Identifier: Apache-2.0
 *
 * cuInit and cuGetProcAddress.
 */
#include "driver.h"
#include "hooks.h"
#include "state.h"

/* Without a valid share nothing may be used: the program is told, and lives on. */
CUresult cuInit(unsigned int flags) {
  if (!AQ_REAL(cuInit))
    return CUDA_ERROR_NO_DEVICE;
  if (aq_depth > 0 || aq_is_ready())
    return AQ_REAL(cuInit)(flags);
  if (!aq_attach_with_slots())
    return CUDA_ERROR_NOT_PERMITTED;
  aq_depth++;
  CUresult result = AQ_REAL(cuInit)(flags);
  aq_depth--;
  if (result == CUDA_SUCCESS)
    aq_devices_bind();
  return result;
}

/* The driver chose by name, version and flags; we only replace the address. An address that
 * we do not know, for a name that we hook, is one that the driver does not export, or an ABI newer
 * than this library: not for a limited program to have. */
static CUresult route(const char *symbol, void **pfn) {
  if (!pfn || !*pfn)
    return CUDA_SUCCESS;
  void *hook = aq_hook_of(*pfn);
  if (!hook && (!symbol || !aq_base_is_hooked(symbol)))
    return CUDA_SUCCESS;
  if (!hook) {
    aq_driver_learn(symbol);
    hook = aq_hook_of(*pfn);
  }
  if (hook) {
    *pfn = hook;
    return CUDA_SUCCESS;
  }
  *pfn = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cuda_version, uint64_t flags) {
  if (!AQ_REAL(cuGetProcAddress))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuGetProcAddress)(symbol, pfn, cuda_version, flags);
  return result == CUDA_SUCCESS && aq_depth == 0 ? route(symbol, pfn) : result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  if (!AQ_REAL(cuGetProcAddress_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = AQ_REAL(cuGetProcAddress_v2)(symbol, pfn, cuda_version, flags, status);
  if (result != CUDA_SUCCESS || aq_depth > 0)
    return result;
  if (route(symbol, pfn) != CUDA_SUCCESS && status)
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND; /* this ABI tells it so, not by an error */
  return result;
}
