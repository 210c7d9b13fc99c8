/* SPDX-License-Identifier: Apache-2.0
 *
 * One decision for all gates of a kind.
 */
#include "gates.h"

#include "books.h"
#include "state.h"

static CUresult refuse_not_supported(void) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult refuse_not_initialized(void) {
  return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult refuse_out_of_memory(void) {
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Without a current context there is nothing to load to yet. */
static bool may_load(void) {
  struct aq_here here;
  return aq_here(&here) != CUDA_SUCCESS || !aq_is_full(here.share);
}

const void *aq_gate_enter(enum aq_id id) {
  const void *real = aq_real(id);
  if (!real)
    return (const void *)refuse_not_supported;
  if (aq_depth > 0)
    return real;
  if (!aq_is_ready())
    return (const void *)refuse_not_initialized;
  if (aq_entries[id].kind == AQ_KIND_LOAD)
    return may_load() ? real : (const void *)refuse_out_of_memory;
  return aq_all_unlimited() ? real : (const void *)refuse_not_supported;
}
