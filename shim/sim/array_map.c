/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory mapped into sparse and deferred arrays: counted where it was created,
 * and kept by the array.
 */
#include <string.h>

#include "array.h"
#include "stream.h"

static struct objects parts = {.size = sizeof(struct array_part)};

/* The array that an entry is about; NULL: none that can be mapped. */
static struct array_body *body_of(const CUarrayMapInfo *info) {
  struct array_body *body = NULL;
  if (info->resourceType == CU_RESOURCE_TYPE_ARRAY && array_is(info->resource.array) &&
      !info->resource.array->mipmap) {
    body = &info->resource.array->body;
  } else if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY && mipmap_is(info->resource.mipmap)) {
    body = &info->resource.mipmap->body;
  }
  const unsigned open = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
  return body && (body->about.Flags & open) ? body : NULL;
}

static bool is_deferred(const struct array_body *body) {
  return body->about.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
}

static bool same_part(const struct array_body *body, const CUarrayMapInfo *a, const CUarrayMapInfo *b) {
  if (is_deferred(body)) {
    return true;
  }
  if (a->subresourceType != b->subresourceType) {
    return false;
  }
  if (a->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    return a->subresource.miptail.layer == b->subresource.miptail.layer &&
           a->subresource.miptail.offset == b->subresource.miptail.offset;
  }
  return memcmp(&a->subresource.sparseLevel, &b->subresource.sparseLevel,
                sizeof a->subresource.sparseLevel) == 0;
}

static struct array_part **find_part(struct array_body *body, const CUarrayMapInfo *info) {
  struct array_part **link = &body->parts;
  while (*link && !same_part(body, &(*link)->info, info)) {
    link = &(*link)->next;
  }
  return link;
}

static uint64_t tiles(unsigned extent, unsigned tile) {
  return (extent + tile - 1) / tile;
}

/* Bytes that the part takes of the memory. 0: there is no such part. */
static uint64_t part_size(const struct array_body *body, const CUarrayMapInfo *info) {
  if (is_deferred(body)) {
    return body->size;
  }
  CUDA_ARRAY_SPARSE_PROPERTIES sparse = array_sparse(&body->about, body->levels);
  if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
    uint64_t offset = info->subresource.miptail.offset;
    uint64_t size = info->subresource.miptail.size;
    bool inside = offset <= sparse.miptailSize && size <= sparse.miptailSize - offset;
    return inside && offset % ARRAY_TILE == 0 ? memory_round(size, ARRAY_TILE) : 0;
  }
  unsigned width = info->subresource.sparseLevel.extentWidth;
  unsigned height = info->subresource.sparseLevel.extentHeight;
  unsigned depth = info->subresource.sparseLevel.extentDepth;
  bool aligned = info->subresource.sparseLevel.offsetX % sparse.tileExtent.width == 0 &&
                 info->subresource.sparseLevel.offsetY % sparse.tileExtent.height == 0 &&
                 info->subresource.sparseLevel.offsetZ % sparse.tileExtent.depth == 0;
  if (!aligned || info->subresource.sparseLevel.level >= body->levels || width > body->about.Width ||
      height > body->about.Height || depth > 65536) {
    return 0;
  }
  return tiles(width, sparse.tileExtent.width) * tiles(height, sparse.tileExtent.height) *
         tiles(depth, sparse.tileExtent.depth) * ARRAY_TILE;
}

static CUresult check_memory(const struct array_body *body, const CUarrayMapInfo *info, CUcontext context,
                             uint64_t size) {
  const struct vmm_memory *memory = vmm_find(info->memHandle.memHandle);
  if (!memory) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  bool pool = memory->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL;
  if (memory->kind != VMM_DEVICE || memory->gpu != context->gpu || !(pool || is_deferred(body)) ||
      info->offset > memory->size || size > memory->size - info->offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

static CUresult check(struct array_body *body, const CUarrayMapInfo *info, CUcontext context) {
  uint64_t size = part_size(body, info);
  if (size == 0 || info->flags != 0 || info->reserved[0] || info->reserved[1] ||
      info->memHandleType != CU_MEM_HANDLE_TYPE_GENERIC || info->deviceBitMask != 1U << context->device) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (info->memOperationType) {
  case CU_MEM_OPERATION_TYPE_MAP:
    return check_memory(body, info, context, size);
  case CU_MEM_OPERATION_TYPE_UNMAP:
    return info->memHandle.memHandle || !*find_part(body, info) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
}

static void unmap(struct array_part **link) {
  struct array_part *part = *link;
  struct vmm_memory *memory = part->memory;
  *link = part->next;
  objects_give(&parts, part);
  memory->uses--;
  vmm_settle(memory);
}

void array_unmap_all(struct array_body *body) {
  while (body->parts) {
    unmap(&body->parts);
  }
}

static CUresult carry_out(struct array_body *body, const CUarrayMapInfo *info) {
  struct array_part **link = find_part(body, info);
  if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
    unmap(link);
    return CUDA_SUCCESS;
  }
  struct array_part *part = objects_take(&parts);
  if (!part) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct vmm_memory *memory = vmm_find(info->memHandle.memHandle);
  *part = (struct array_part){.info = *info, .memory = memory};
  memory->uses++;
  if (*link) {
    unmap(link); /* mapped anew */
  }
  part->next = body->parts;
  body->parts = part;
  return CUDA_SUCCESS;
}

static CUresult map(const CUarrayMapInfo *list, unsigned count, CUstream stream) {
  CUcontext context;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = stream_owner(stream, &context);
  if (result == CUDA_SUCCESS && (!list || count == 0)) {
    result = CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
    struct array_body *body = body_of(&list[i]);
    result = body ? check(body, &list[i], context) : CUDA_ERROR_INVALID_VALUE;
    result = result == CUDA_SUCCESS ? carry_out(body, &list[i]) : result;
  }
  return driver_leave(result);
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream) {
  return map(mapInfoList, count, hStream);
}
CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream) {
  return map(mapInfoList, count, hStream);
}
