/* SPDX-License-Identifier: Apache-2.0
 *
 * One decision for all gates.
 */
#include "gates.h"

#include "state.h"

static CUresult refuse_not_supported(void) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult refuse_not_initialized(void) {
  return CUDA_ERROR_NOT_INITIALIZED;
}

const void *aq_gate_enter(enum aq_id id) {
  const void *real = aq_real(id);
  if (!real)
    return (const void *)refuse_not_supported;
  if (aq_depth > 0)
    return real;
  if (!aq_is_ready())
    return (const void *)refuse_not_initialized;
  return aq_all_unlimited() ? real : (const void *)refuse_not_supported;
}
