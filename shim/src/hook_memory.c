/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear and managed memory. Managed memory counts in full, wherever its pages are.
 *
 * A NULL output goes to the driver as it is: it can give no memory there.
 */
#include "books.h"
#include "capture.h"
#include "hooks.h"
#include "leaving.h"
#include "pools.h"
#include "state.h"

enum { GRAIN = 512, PAGE = 2 << 20 };

/* What the GPU gives: whole pages, and small allocations packed into such. UINT64_MAX: more
 * than there can be. */
static uint64_t taken(uint64_t bytes) {
  uint64_t step = bytes < PAGE ? GRAIN : PAGE;
  return bytes > UINT64_MAX - step ? UINT64_MAX : (bytes + step - 1) & ~(step - 1);
}

static uint64_t taken_by_rows(uint64_t pitch, uint64_t height) {
  uint64_t bytes;
  return __builtin_mul_overflow(pitch, height, &bytes) ? UINT64_MAX : taken(bytes);
}

/* Before the driver is asked, with the pitch that GPUs have. */
static uint64_t taken_by_pitched(uint64_t width, uint64_t height) {
  if (width > UINT64_MAX - GRAIN)
    return UINT64_MAX;
  return taken_by_rows((width + GRAIN - 1) & ~(uint64_t)(GRAIN - 1), height);
}

static CUresult free_real(CUdeviceptr pointer) {
  return AQ_REAL(cuMemFree_v2) ? AQ_REAL(cuMemFree_v2)(pointer) : CUDA_ERROR_NOT_SUPPORTED;
}

/* What every allocation does before the driver is asked; `bytes` as the GPU gives them. Without
 * a current context the driver is asked all the same, for its own answer: charge->share is NULL
 * then. */
static CUresult begin(uint64_t bytes, struct aq_here *here, struct aq_charge *charge) {
  CUresult result = aq_here(here);
  if (result == CUDA_SUCCESS)
    return aq_reserve(here->share, bytes, charge) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  charge->share = NULL;
  bool ours = result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_INITIALIZED;
  return ours ? result : CUDA_SUCCESS;
}

AQ_RARE static CUresult undo(CUdeviceptr pointer) {
  aq_depth++;
  free_real(pointer);
  aq_depth--;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ... and afterwards. Memory that cannot be put on record is given back. */
static inline CUresult settle(CUresult result, const struct aq_here *here, const struct aq_charge *charge,
                              CUdeviceptr pointer, bool managed) {
  if (!charge->share)
    return result == CUDA_SUCCESS ? undo(pointer) : result;
  struct aq_record record = {.thing = AQ_POINTER, .key = pointer, .context = here->context, .count = managed};
  if (result == CUDA_SUCCESS && aq_commit(charge, &record))
    return CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    result = undo(pointer);
  aq_cancel(charge);
  return result;
}

AQ_HOT CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes) {
  struct aq_here here;
  struct aq_charge charge;
  CUdeviceptr pointer = 0;
  if (!AQ_REAL(cuMemAlloc_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !dptr)
    return AQ_REAL(cuMemAlloc_v2)(dptr, bytes);
  CUresult result = begin(taken(bytes), &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuMemAlloc_v2)(&pointer, bytes);
  aq_depth--;
  result = settle(result, &here, &charge, pointer, false);
  if (result == CUDA_SUCCESS)
    *dptr = pointer;
  return result;
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytes) {
  struct aq_here here;
  struct aq_charge charge;
  CUdeviceptr_v1 pointer = 0;
  if (!AQ_REAL(cuMemAlloc))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !dptr)
    return AQ_REAL(cuMemAlloc)(dptr, bytes);
  CUresult result = begin(taken(bytes), &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuMemAlloc)(&pointer, bytes);
  aq_depth--;
  result = settle(result, &here, &charge, pointer, false);
  if (result == CUDA_SUCCESS)
    *dptr = pointer;
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytes, unsigned int flags) {
  struct aq_here here;
  struct aq_charge charge;
  CUdeviceptr pointer = 0;
  if (!AQ_REAL(cuMemAllocManaged))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !dptr)
    return AQ_REAL(cuMemAllocManaged)(dptr, bytes, flags);
  CUresult result = begin(taken(bytes), &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuMemAllocManaged)(&pointer, bytes, flags);
  aq_depth--;
  result = settle(result, &here, &charge, pointer, true);
  if (result != CUDA_SUCCESS)
    return result;
  aq_managed_change(charge.share, charge.bytes);
  *dptr = pointer;
  return CUDA_SUCCESS;
}

/* Rows are padded by the driver: the charge follows what it answers. */
static CUresult correct_pitch(CUresult result, struct aq_charge *charge, CUdeviceptr pointer, size_t pitch,
                              size_t height) {
  if (result != CUDA_SUCCESS || !charge->share || aq_reserve_exactly(charge, taken_by_rows(pitch, height)))
    return result;
  return undo(pointer);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
                            unsigned int element) {
  struct aq_here here;
  struct aq_charge charge;
  CUdeviceptr pointer = 0;
  size_t row = 0;
  if (!AQ_REAL(cuMemAllocPitch_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !dptr || !pitch)
    return AQ_REAL(cuMemAllocPitch_v2)(dptr, pitch, width, height, element);
  CUresult result = begin(taken_by_pitched(width, height), &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuMemAllocPitch_v2)(&pointer, &row, width, height, element);
  aq_depth--;
  result = correct_pitch(result, &charge, pointer, row, height);
  result = settle(result, &here, &charge, pointer, false);
  if (result != CUDA_SUCCESS)
    return result;
  *dptr = pointer;
  *pitch = row;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
  struct aq_here here;
  struct aq_charge charge;
  CUdeviceptr_v1 pointer = 0;
  unsigned int row = 0;
  if (!AQ_REAL(cuMemAllocPitch))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !dptr || !pitch)
    return AQ_REAL(cuMemAllocPitch)(dptr, pitch, width, height, element);
  CUresult result = begin(taken_by_pitched(width, height), &here, &charge);
  if (result != CUDA_SUCCESS)
    return result;
  aq_depth++;
  result = AQ_REAL(cuMemAllocPitch)(&pointer, &row, width, height, element);
  aq_depth--;
  result = correct_pitch(result, &charge, pointer, row, height);
  result = settle(result, &here, &charge, pointer, false);
  if (result != CUDA_SUCCESS)
    return result;
  *dptr = pointer;
  *pitch = row;
  return CUDA_SUCCESS;
}

/* A pointer that is not on record goes to the driver, and its answer comes back unchanged. */
static bool taken_out(CUdeviceptr pointer, struct aq_freed *freed) {
  return aq_depth == 0 && aq_is_ready() && aq_free_begin(AQ_POINTER, pointer, freed);
}

static CUresult settle_free(CUresult result, const struct aq_freed *freed) {
  const struct aq_record *record = &freed->record;
  if (record->number == 0)
    aq_free_end(freed, result == CUDA_SUCCESS);
  else if (result == CUDA_SUCCESS)
    aq_pool_freed(record->number, record->bytes, true);
  else
    aq_note(record);
  return result;
}

AQ_HOT CUresult cuMemFree_v2(CUdeviceptr dptr) {
  struct aq_freed freed;
  if (!AQ_REAL(cuMemFree_v2))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!taken_out(dptr, &freed))
    return AQ_REAL(cuMemFree_v2)(dptr);
  aq_depth++;
  CUresult result = AQ_REAL(cuMemFree_v2)(dptr);
  aq_depth--;
  return settle_free(result, &freed);
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) {
  struct aq_freed freed;
  if (!AQ_REAL(cuMemFree))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!taken_out(dptr, &freed))
    return AQ_REAL(cuMemFree)(dptr);
  aq_depth++;
  CUresult result = AQ_REAL(cuMemFree)(dptr);
  aq_depth--;
  return settle_free(result, &freed);
}

/* Under capture nothing is freed; a node is added. Memory of a pool goes back to it at the call, other memory
 * to the GPU when the stream gets there. */
static CUresult free_async(__typeof__(cuMemFreeAsync) *real, CUdeviceptr pointer, CUstream stream,
                           bool per_thread) {
  struct aq_freed freed;
  if (!real)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_is_captured(stream, per_thread) || !taken_out(pointer, &freed))
    return real(pointer, stream);
  if (freed.record.number)
    aq_pool_parting(freed.record.number, pointer, freed.record.bytes);
  aq_depth++;
  CUresult result = real(pointer, stream);
  aq_depth--;
  if (result != CUDA_SUCCESS)
    return settle_free(result, &freed);
  if (freed.record.number)
    aq_pool_freed(freed.record.number, freed.record.bytes, false);
  else
    aq_leaving_add(&freed, stream, per_thread);
  return CUDA_SUCCESS;
}

AQ_HOT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream) {
  return free_async(AQ_REAL(cuMemFreeAsync), dptr, stream, false);
}

AQ_HOT CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream) {
  return free_async(AQ_REAL(cuMemFreeAsync_ptsz), dptr, stream, true);
}
