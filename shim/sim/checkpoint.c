/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of a process by itself: its memory leaves the GPUs and comes back.
 * Another process cannot be checkpointed from here, and neither can one that
 * made memory for sharing.
 */
#include <unistd.h>

#include "memory.h"

static CUprocessState state;

/* What the process held of each GPU. */
static struct {
  struct books_delta delta;
  uint32_t contexts;
} kept[SIM_GPUS];

static bool zeroed(const void *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    if (((const char *)bytes)[i]) {
      return false;
    }
  }
  return true;
}

/* Lock the driver, also while the process is locked against all other calls. */
static CUresult enter(int pid) {
  CUresult result = driver_enter_held();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return pid == getpid() ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_NOT_SUPPORTED);
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *now) {
  CUresult result = enter(pid);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!now) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *now = state;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  CUresult result = enter(pid);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (args && (args->reserved0 || !zeroed(args->reserved1, sizeof args->reserved1))) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (state != CU_PROCESS_STATE_RUNNING) {
    return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
  }
  state = CU_PROCESS_STATE_LOCKED;
  driver_hold(true);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  CUresult result = enter(pid);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (args && !zeroed(args, sizeof *args)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (state != CU_PROCESS_STATE_LOCKED) {
    return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
  }
  state = CU_PROCESS_STATE_RUNNING;
  driver_hold(false);
  return driver_leave(CUDA_SUCCESS);
}

static struct books_delta opposite(struct books_delta delta) {
  return (struct books_delta){.pages = -delta.pages, .packed = -delta.packed, .requested = -delta.requested};
}

static bool has_shared(void) {
  for (uint32_t gpu = 0; gpu < driver.books.node.state->gpus; gpu++) {
    if (driver.books.gpu[gpu].shared > 0) {
      return true;
    }
  }
  return false;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  CUresult result = enter(pid);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (args && !zeroed(args->reserved, sizeof args->reserved)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (state != CU_PROCESS_STATE_LOCKED) {
    return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
  }
  if ((args && args->customStorageInfo_out) || has_shared()) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  for (uint32_t gpu = 0; gpu < driver.books.node.state->gpus; gpu++) {
    const struct books_gpu *mine = &driver.books.gpu[gpu];
    kept[gpu].delta = (struct books_delta){.pages = (int64_t)mine->pages,
                                           .packed = (int64_t)mine->packed,
                                           .requested = (int64_t)mine->held[SIM_REQUESTED]};
    kept[gpu].contexts = books_contexts(&driver.books, gpu);
    books_change(&driver.books, gpu, opposite(kept[gpu].delta));
    books_set_contexts(&driver.books, gpu, 0);
  }
  state = CU_PROCESS_STATE_CHECKPOINTED;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  CUresult result = enter(pid);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (args && !zeroed(args->reserved, sizeof args->reserved)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (state != CU_PROCESS_STATE_CHECKPOINTED) {
    return driver_leave(CUDA_ERROR_ILLEGAL_STATE);
  }
  if (args && (args->gpuPairsCount || args->customStorageInfo_out)) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  uint32_t count = driver.books.node.state->gpus;
  uint32_t back = 0;
  while (back < count && books_change(&driver.books, back, kept[back].delta)) {
    back++;
  }
  if (back < count) {
    while (back-- > 0) {
      books_change(&driver.books, back, opposite(kept[back].delta));
    }
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  for (uint32_t gpu = 0; gpu < count; gpu++) {
    books_set_contexts(&driver.books, gpu, kept[gpu].contexts);
  }
  state = CU_PROCESS_STATE_LOCKED;
  return driver_leave(CUDA_SUCCESS);
}
