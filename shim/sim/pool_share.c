/* SPDX-License-Identifier: Apache-2.0
 *
 * Pools between processes: the importer gets addresses, never memory of its own.
 */
#include <string.h>

#include "import.h"
#include "pool.h"

#define POINTER_MAGIC 0x5254504c4f4f5041ULL

/* What cuMemPoolExportPointer writes into the 64 bytes that programs pass on. */
struct pointer_data {
  uint64_t magic;
  uint64_t life; /* of the pool's slot */
  uint32_t slot;
  uint64_t address; /* at the exporter */
  uint64_t size;
};

_Static_assert(sizeof(struct pointer_data) <= sizeof(CUmemPoolPtrExportData),
               "the program's buffer holds it");

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType handleType, unsigned long long flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!handle_out || flags != 0 || !pool_is(pool) || pool->imported ||
      handleType == CU_MEM_HANDLE_TYPE_NONE || !(pool->props.handleTypes & handleType)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  int fd = shared_export(&driver.books, &pool->shared);
  if (fd < 0) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *(int *)handle_out = fd;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                            CUmemAllocationHandleType handleType, unsigned long long flags) {
  struct shared shared;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && handleType != CU_MEM_HANDLE_TYPE_NONE) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  if (!pool_out || flags != 0 || handleType == CU_MEM_HANDLE_TYPE_NONE ||
      !shared_import(&driver.books, (int)(intptr_t)handle, SIM_SHARED_POOL, &shared)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = pool_adopt(&shared, pool_out);
  if (result != CUDA_SUCCESS) {
    shared_drop(&driver.books, &shared);
  }
  return driver_leave(result);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct space_block *block = space_find(ptr);
  const struct arena_segment *segment =
      block && block->kind == SPACE_CHUNK ? pool_find(block, ptr, false) : NULL;
  if (!shareData_out || !segment || !pool_of(block)->shared.slot) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  const struct shared *shared = &pool_of(block)->shared;
  struct pointer_data data = {.magic = POINTER_MAGIC,
                              .life = shared->life,
                              .slot = shared->slot,
                              .address = ptr,
                              .size = segment->asked};
  memset(shareData_out, 0, sizeof *shareData_out);
  memcpy(shareData_out, &data, sizeof data);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool, CUmemPoolPtrExportData *shareData) {
  struct pointer_data data;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!ptr_out || !shareData || !pool_is(pool) || !pool->imported) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  memcpy(&data, shareData, sizeof data);
  if (data.magic != POINTER_MAGIC || data.slot != pool->shared.slot || data.life != pool->shared.life) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct space_block *block = import_take(data.size, (struct import){.kind = IMPORT_POOL, .pool = pool});
  if (!block) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  pool->imports++;
  *ptr_out = block->address;
  return driver_leave(CUDA_SUCCESS);
}
