/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "array.h"
#include "capture.h"
#include "copy.h"
#include "graph.h"
#include "managed.h"

/* One side of a copy: rows at a distance, layers of rows at a distance. */
struct side {
  CUmemorytype type;
  uintptr_t base;
  CUarray array;
  size_t x, y, z; /* where in it to begin */
  size_t pitch, height;
};

struct extent {
  size_t width, height, depth;
};

static struct side source_of(const CUDA_MEMCPY3D *copy) {
  bool host = copy->srcMemoryType == CU_MEMORYTYPE_HOST;
  return (struct side){.type = copy->srcMemoryType,
                       .base = host ? (uintptr_t)copy->srcHost : copy->srcDevice,
                       .array = copy->srcArray,
                       .x = copy->srcXInBytes,
                       .y = copy->srcY,
                       .z = copy->srcZ,
                       .pitch = copy->srcPitch,
                       .height = copy->srcHeight};
}

static struct side target_of(const CUDA_MEMCPY3D *copy) {
  bool host = copy->dstMemoryType == CU_MEMORYTYPE_HOST;
  return (struct side){.type = copy->dstMemoryType,
                       .base = host ? (uintptr_t)copy->dstHost : copy->dstDevice,
                       .array = copy->dstArray,
                       .x = copy->dstXInBytes,
                       .y = copy->dstY,
                       .z = copy->dstZ,
                       .pitch = copy->dstPitch,
                       .height = copy->dstHeight};
}

static bool inside(size_t start, size_t length, size_t whole) {
  return start <= whole && length <= whole - start;
}

static bool inside_array(const struct side *side, struct extent extent) {
  struct array_element element;
  if (!array_is(side->array)) {
    return false;
  }
  const CUDA_ARRAY3D_DESCRIPTOR *about = &side->array->body.about;
  array_element(about, &element);
  size_t rows = about->Height ? about->Height : 1;
  size_t layers = about->Depth ? about->Depth : 1;
  return inside(side->x, extent.width, about->Width * element.bytes) &&
         inside(side->y, extent.height, rows) && inside(side->z, extent.depth, layers);
}

/* First byte of the part and how many bytes it spans. False: rows overlap, or more than there are addresses.
 */
static bool span_of(struct side *side, struct extent extent, uintptr_t *first, size_t *bytes) {
  size_t row = side->x + extent.width;
  bool one_layer = extent.depth == 1 && side->z == 0;
  if (one_layer && extent.height == 1 && side->y == 0) {
    side->pitch = row;
  }
  if (one_layer) {
    side->height = side->y + extent.height;
  }
  size_t layer;
  size_t before;
  size_t down;
  size_t across;
  if (side->pitch < row || side->height < side->y + extent.height ||
      __builtin_mul_overflow(side->pitch, side->height, &layer) ||
      __builtin_mul_overflow(layer, side->z, &before) ||
      __builtin_mul_overflow(side->pitch, side->y, &down) ||
      __builtin_mul_overflow(layer, extent.depth - 1, &across)) {
    return false;
  }
  *first = side->base + before + down + side->x;
  *bytes = across + side->pitch * (extent.height - 1) + extent.width;
  return true;
}

/* Bytes of a range; NULL: device memory without any. False: no such range, or not of that kind. */
static bool resolve(uintptr_t address, size_t size, CUmemorytype type, char **bytes) {
  struct memory_range range;
  *bytes = (char *)address;
  if (type == CU_MEMORYTYPE_HOST) {
    return address;
  }
  if (!memory_locate(address, &range)) {
    bool host =
        address && !space_find(address); /* unified addresses: what is not the driver's is the host's */
    return type == CU_MEMORYTYPE_UNIFIED && host;
  }
  space_back_part(range.base, range.size, range.host, range.backing);
  if (*range.backing != SPACE_BACKED) {
    *bytes = NULL;
  }
  return size <= range.size - (address - range.base);
}

/* The part's first byte in memory; NULL: none is kept. */
static bool locate(struct side *side, struct extent extent, char **bytes, size_t *size) {
  uintptr_t first;
  *size = 0;
  *bytes = NULL;
  if (side->type == CU_MEMORYTYPE_ARRAY) {
    return inside_array(side, extent);
  }
  bool known = side->type == CU_MEMORYTYPE_HOST || side->type == CU_MEMORYTYPE_DEVICE ||
               side->type == CU_MEMORYTYPE_UNIFIED;
  return known && span_of(side, extent, &first, size) && resolve(first, *size, side->type, bytes);
}

/* Who writes to managed memory by the driver brings it to the GPU. */
static void touch(CUcontext context, uintptr_t address, size_t size) {
  struct managed *managed = context && size ? managed_around(address, size) : NULL;
  if (managed) {
    managed_touch(managed, address, size, context->gpu);
  }
}

static void move(char *target, const struct side *to, const char *source, const struct side *from,
                 struct extent extent) {
  for (size_t layer = 0; layer < extent.depth; layer++) {
    for (size_t row = 0; row < extent.height; row++) {
      char *there = target + (layer * to->height + row) * to->pitch;
      if (source) {
        memmove(there, source + (layer * from->height + row) * from->pitch, extent.width);
      } else {
        memset(there, 0, extent.width);
      }
    }
  }
}

CUresult copy_run(const CUDA_MEMCPY3D *copy, CUcontext context) {
  struct extent extent = {copy->WidthInBytes, copy->Height, copy->Depth};
  struct side from = source_of(copy);
  struct side to = target_of(copy);
  char *source;
  char *target;
  size_t size;
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0) {
    return CUDA_SUCCESS;
  }
  if (!locate(&from, extent, &source, &size) || !locate(&to, extent, &target, &size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (to.type != CU_MEMORYTYPE_HOST) {
    touch(context, (uintptr_t)target, size);
  }
  if (target) {
    move(target, &to, source, &from, extent);
  }
  return CUDA_SUCCESS;
}

static void fill_row(char *bytes, unsigned value, unsigned element, size_t count) {
  for (size_t i = 0; i < count; i++) {
    memcpy(bytes + i * element, &value, element); /* the low bytes of the value */
  }
}

CUresult fill_run(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context) {
  bool known = fill->elementSize == 1 || fill->elementSize == 2 || fill->elementSize == 4;
  struct extent extent = {.height = fill->height, .depth = 1};
  struct side side = {.type = CU_MEMORYTYPE_DEVICE, .base = fill->dst, .pitch = fill->pitch};
  char *bytes;
  size_t size;
  if (!known || __builtin_mul_overflow(fill->width, (size_t)fill->elementSize, &extent.width) ||
      fill->dst % fill->elementSize != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (extent.width == 0 || extent.height == 0) {
    return CUDA_SUCCESS;
  }
  if (!locate(&side, extent, &bytes, &size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  touch(context, fill->dst, size);
  for (size_t row = 0; bytes && row < extent.height; row++) {
    fill_row(bytes + row * side.pitch, fill->value, fill->elementSize, fill->width);
  }
  return CUDA_SUCCESS;
}

CUresult copy_node(const CUDA_MEMCPY3D *copy) {
  return copy_run(copy, NULL);
}
CUresult fill_node(const CUDA_MEMSET_NODE_PARAMS *fill) {
  return fill_run(fill, NULL);
}

/* --- calls --- */

/* Lock the driver. A call that is not ordered in a stream waits for the default stream first. */
static CUresult enter(struct copy_order order, CUcontext *context, bool *captured) {
  if (order.asynchronous) {
    return memory_enter_stream(order.stream, order.per_thread, context, captured);
  }
  *captured = false;
  stream_drain_default(order.per_thread);
  return memory_enter(context);
}

CUresult copy_call(const CUDA_MEMCPY3D *copy, struct copy_order order) {
  CUcontext context;
  bool captured;
  CUresult result = enter(order, &context, &captured);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return driver_leave(captured ? capture_copy(order.stream, order.per_thread, copy)
                               : copy_run(copy, context));
}

CUresult fill_call(const CUDA_MEMSET_NODE_PARAMS *fill, struct copy_order order) {
  CUcontext context;
  bool captured;
  CUresult result = enter(order, &context, &captured);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return driver_leave(captured ? capture_fill(order.stream, order.per_thread, fill)
                               : fill_run(fill, context));
}
