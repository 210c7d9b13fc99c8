/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies behind a pointer.
 */
#include "import.h"
#include "managed.h"
#include "pool.h"
#include "vmm.h"

struct pointer {
  uintptr_t address;
  struct memory_range range; /* what is mapped */
  uintptr_t start;           /* what was reserved */
  size_t size;
  CUcontext context; /* NULL: of none */
  int device;
  CUmemorytype type;
  bool managed;
  bool for_host; /* the host may use it */
  CUmemoryPool pool;
  int handles;
  bool ipc;
};

static void describe_host(struct pointer *pointer, const struct host_range *range) {
  pointer->range = (struct memory_range){.base = range->base, .size = range->size, .id = range->id};
  pointer->type = CU_MEMORYTYPE_HOST;
  pointer->for_host = true;
  pointer->context = range->context;
  pointer->device = range->context ? (int)range->context->device : CU_DEVICE_INVALID;
}

static void describe_chunk(struct pointer *pointer) {
  CUmemoryPool pool = pool_of(pointer->range.block);
  pointer->pool = pool;
  pointer->device = pool->place == POOL_DEVICE ? driver_ordinal(pool->gpu) : CU_DEVICE_INVALID;
  pointer->managed = pool->place == POOL_MANAGED;
  pointer->type = pool->place == POOL_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  pointer->handles = (int)pool->props.handleTypes;
}

static void describe_mapping(struct pointer *pointer) {
  const struct vmm_memory *memory = vmm_mapping_at(pointer->range.block, pointer->address)->memory;
  vmm_range_of(pointer->range.block, &pointer->start, &pointer->size);
  bool device = memory->kind == VMM_DEVICE;
  pointer->device = device ? driver_ordinal(memory->gpu) : CU_DEVICE_INVALID;
  pointer->type = memory->kind == VMM_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  pointer->handles = (int)memory->prop.requestedHandleTypes;
}

static void describe_device(struct pointer *pointer) {
  const struct space_block *block = pointer->range.block;
  switch (block->kind) {
  case SPACE_LINEAR:
    pointer->context = block->owner;
    pointer->ipc = true;
    break;
  case SPACE_VARIABLES:
    pointer->context = block->owner;
    break;
  case SPACE_MANAGED:
    pointer->context = ((const struct managed *)block->owner)->context;
    pointer->managed = true;
    break;
  case SPACE_IMPORT:
    pointer->context = ((const struct import *)block->owner)->context;
    break;
  case SPACE_CHUNK:
    describe_chunk(pointer);
    return;
  case SPACE_RANGE:
    describe_mapping(pointer);
    return;
  case SPACE_GRAPH:
    break;
  }
  pointer->device = pointer->context ? (int)pointer->context->device : 0;
}

/* False: the driver knows nothing of the address. */
static bool describe(CUdeviceptr address, struct pointer *pointer) {
  struct host_range host;
  *pointer = (struct pointer){.address = address, .type = CU_MEMORYTYPE_DEVICE};
  bool device = memory_locate(address, &pointer->range);
  if (device) {
    pointer->for_host = pointer->range.host;
    pointer->start = pointer->range.base;
    pointer->size = pointer->range.size;
    describe_device(pointer);
  } else if (host_find(address, &host)) {
    describe_host(pointer, &host);
    pointer->start = host.base;
    pointer->size = host.size;
  } else {
    return false;
  }
  return true;
}

/* The sizes of the answers are those that cuda.h names for each. */
static CUresult answer(const struct pointer *pointer, CUpointer_attribute attribute, void *data) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)data = pointer->context;
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)data = pointer->type;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr *)data = pointer->address;
    break;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (!pointer->for_host) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *(void **)data = (void *)pointer->address;
    break;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
  case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
    *(unsigned long long *)data = pointer->range.id;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)data = pointer->device;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)data = pointer->start;
    break;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)data = pointer->size;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    *(CUdeviceptr *)data = pointer->range.base;
    break;
  case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    *(size_t *)data = pointer->range.size;
    break;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(cuuint64_t *)data = (cuuint64_t)pointer->handles;
    break;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(CUmemoryPool *)data = pointer->pool;
    break;
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    *(int *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    break;
  case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
    *(int *)data = -1;
    break;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

static bool is_boolean(CUpointer_attribute attribute) {
  return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
         attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
         attribute == CU_POINTER_ATTRIBUTE_MAPPED ||
         attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE ||
         attribute == CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
}

static CUresult ask(const struct pointer *pointer, CUpointer_attribute attribute, void *data) {
  if (!is_boolean(attribute)) {
    return answer(pointer, attribute, data);
  }
  *(bool *)data = (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED && pointer->managed) ||
                  (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE && pointer->ipc) ||
                  attribute == CU_POINTER_ATTRIBUTE_MAPPED;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  struct pointer pointer;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
    return driver_leave(CUDA_ERROR_NOT_SUPPORTED);
  }
  if (!data || !describe(ptr, &pointer)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_leave(ask(&pointer, attribute, data));
}

static size_t size_of(CUpointer_attribute attribute) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
  case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
  case CU_POINTER_ATTRIBUTE_LOCALITY_DOMAIN_ORDINAL:
    return sizeof(int);
  default:
    return is_boolean(attribute) ? sizeof(bool) : sizeof(uint64_t);
  }
}

/* cuda.h: a pointer that CUDA does not know is no error here; its attributes are zero, its device is none. */
CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr) {
  struct pointer pointer;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!attributes || !data || numAttributes == 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  bool known = describe(ptr, &pointer);
  for (unsigned i = 0; i < numAttributes; i++) {
    int device = CU_DEVICE_INVALID;
    if (known && ask(&pointer, attributes[i], data[i]) == CUDA_SUCCESS) {
      continue;
    }
    __builtin_memset(data[i], 0, size_of(attributes[i]));
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      *(int *)data[i] = device;
    }
  }
  return driver_leave(CUDA_SUCCESS);
}

/* Everything synchronises as it is. */
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  struct pointer pointer;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool valid = value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && describe(ptr, &pointer) &&
               pointer.type == CU_MEMORYTYPE_DEVICE && !pointer.managed;
  return driver_leave(valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
