/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations of other processes, by handles of 64 bytes. The memory is the
 * exporter's, and ends with it.
 */
#include <string.h>

#include "import.h"

#define HANDLE_MAGIC 0x43504951494c41ULL

struct ipc_handle {
  uint64_t magic;
  uint64_t life; /* of the exporter's slot */
  uint32_t slot;
  uint32_t gpu;
  uint64_t id; /* of the allocation, at the exporter */
  uint64_t size;
};

_Static_assert(sizeof(struct ipc_handle) <= sizeof(CUipcMemHandle), "the program's buffer holds it");

/* Blocks that this process has opened. */
static struct import *opened;

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct space_block *block = space_find(dptr);
  if (!pHandle || !block || block->kind != SPACE_LINEAR) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  const struct books *books = &driver.books;
  struct ipc_handle handle = {.magic = HANDLE_MAGIC,
                              .life = atomic_load(&books->node.state->slot[books->slot].life),
                              .slot = books->slot,
                              .gpu = ((CUcontext)block->owner)->gpu,
                              .id = block->id,
                              .size = block->size};
  memset(pHandle, 0, sizeof *pHandle);
  memcpy(pHandle, &handle, sizeof handle);
  return driver_leave(CUDA_SUCCESS);
}

static bool is_alive(const struct ipc_handle *handle) {
  const struct node *node = &driver.books.node;
  return handle->slot > 0 && handle->slot < SIM_SLOTS &&
         atomic_load(&node->state->slot[handle->slot].life) == handle->life &&
         slots_alive(node, handle->slot);
}

static struct import *find(const struct ipc_handle *handle, CUcontext context) {
  struct import *import = opened;
  while (import && (import->context != context || import->source_slot != handle->slot ||
                    import->source_life != handle->life || import->source_id != handle->id)) {
    import = import->next;
  }
  return import;
}

static CUresult map(const struct ipc_handle *handle, CUcontext context, CUdeviceptr *address) {
  struct import *import = find(handle, context);
  if (!import) {
    struct import about = {.kind = IMPORT_IPC,
                           .context = context,
                           .source_slot = handle->slot,
                           .source_life = handle->life,
                           .source_id = handle->id,
                           .next = opened};
    struct space_block *block = handle->size ? import_take(handle->size, about) : NULL;
    if (!block) {
      return CUDA_ERROR_MAP_FAILED;
    }
    import = block->owner;
    import->block = block;
    opened = import;
  }
  import->opened++;
  *address = import->block->address;
  return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *address, const CUipcMemHandle *given, unsigned flags) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct ipc_handle handle;
  memcpy(&handle, given, sizeof handle);
  if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (handle.magic != HANDLE_MAGIC || !is_alive(&handle)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  if (handle.slot == driver.books.slot) {
    return driver_leave(CUDA_ERROR_INVALID_CONTEXT); /* one's own handles cannot be opened */
  }
  if (handle.gpu != context->gpu || !driver_shares(handle.slot)) {
    return driver_leave(CUDA_ERROR_MAP_FAILED); /* there are no peers */
  }
  return driver_leave(map(&handle, context, address));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return open_handle(pdptr, &handle, Flags);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
  return open_handle(pdptr, &handle, Flags);
}

static void unmap(struct import *gone) {
  struct import **link = &opened;
  while (*link != gone) {
    link = &(*link)->next;
  }
  *link = gone->next;
  import_give(gone->block);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  const struct space_block *block = space_find(dptr);
  struct import *import = block && block->kind == SPACE_IMPORT ? block->owner : NULL;
  if (!import || import->kind != IMPORT_IPC || block->address != dptr) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (--import->opened == 0) {
    unmap(import);
  }
  return driver_leave(CUDA_SUCCESS);
}

void ipc_forget(CUcontext context) {
  struct import *next;
  for (struct import *import = opened; import; import = next) {
    next = import->next;
    if (import->context == context) {
      unmap(import);
    }
  }
}
