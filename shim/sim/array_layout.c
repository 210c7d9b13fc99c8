/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes of arrays: data in, data out.
 */
#include "array.h"

#define GOB_BYTES 64ULL
#define GOB_ROWS  8ULL

#define FLAGS                                                                                                \
  (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |   \
   CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_SPARSE |                        \
   CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE)

static size_t larger(size_t a, size_t b) {
  return a > b ? a : b;
}

static unsigned plain_bytes(CUarray_format format) {
  switch (format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return 1;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2;
  case CU_AD_FORMAT_UNSIGNED_INT32:
  case CU_AD_FORMAT_SIGNED_INT32:
  case CU_AD_FORMAT_FLOAT:
    return 4;
  default:
    return 0;
  }
}

/* Normalised formats have their number of channels in their names: bytes per channel and channels. */
static bool is_normalised(CUarray_format format, unsigned *bytes, unsigned *channels) {
  if (format < CU_AD_FORMAT_UNORM_INT8X1 || format > CU_AD_FORMAT_SNORM_INT16X4) {
    return false;
  }
  unsigned place = (unsigned)(format - CU_AD_FORMAT_UNORM_INT8X1);
  *bytes = place / 3 % 2 ? 2 : 1;
  *channels = 1U << place % 3;
  return true;
}

static bool is_compressed(CUarray_format format) {
  return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB;
}

static unsigned compressed_bytes(CUarray_format format) {
  bool small = format <= CU_AD_FORMAT_BC1_UNORM_SRGB || format == CU_AD_FORMAT_BC4_UNORM ||
               format == CU_AD_FORMAT_BC4_SNORM;
  return small ? 8 : 16;
}

CUresult array_element(const CUDA_ARRAY3D_DESCRIPTOR *about, struct array_element *element) {
  unsigned channels = about->NumChannels;
  unsigned named = 0;
  unsigned bytes = plain_bytes(about->Format);
  *element = (struct array_element){.block = 1, .halves = 2};
  if (bytes) {
    element->bytes = bytes * channels;
    return channels == 1 || channels == 2 || channels == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (is_normalised(about->Format, &bytes, &named)) {
    element->bytes = bytes * named;
    return channels == named ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (is_compressed(about->Format)) {
    element->bytes = compressed_bytes(about->Format);
    element->block = 4;
    return channels >= 1 && channels <= 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (about->Format == CU_AD_FORMAT_NV12 || about->Format == CU_AD_FORMAT_P010 ||
      about->Format == CU_AD_FORMAT_P016) {
    element->bytes = about->Format == CU_AD_FORMAT_NV12 ? 1 : 2;
    element->halves = 3;
    return channels == 3 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  bool video = (about->Format >= CU_AD_FORMAT_UNORM_INT_101010_2 && about->Format < CU_AD_FORMAT_BC1_UNORM) ||
               (about->Format > CU_AD_FORMAT_P010 && about->Format < CU_AD_FORMAT_UNORM_INT8X1);
  return video ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

/* CUDA programming guide, "Technical specifications per compute capability". */
static bool fits(const CUDA_ARRAY3D_DESCRIPTOR *about) {
  size_t w = about->Width;
  size_t h = about->Height;
  size_t d = about->Depth;
  if (about->Flags & CUDA_ARRAY3D_CUBEMAP) {
    bool layered = about->Flags & CUDA_ARRAY3D_LAYERED;
    return w == h && w <= 32768 && d % 6 == 0 && d > 0 && d <= (layered ? 2046U : 6U);
  }
  if (about->Flags & CUDA_ARRAY3D_LAYERED) {
    return d > 0 && d <= 2048 && w <= 32768 && h <= 32768;
  }
  if (about->Flags & CUDA_ARRAY3D_TEXTURE_GATHER) {
    return d == 0 && h > 0 && w <= 32768 && h <= 32768;
  }
  if (d > 0) {
    return h > 0 && w <= 16384 && h <= 16384 && d <= 16384;
  }
  return h > 0 ? w <= 131072 && h <= 65536 : w <= 131072;
}

CUresult array_check(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned levels) {
  struct array_element element;
  CUresult result = array_element(about, &element);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool sparse = about->Flags & CUDA_ARRAY3D_SPARSE;
  bool deferred = about->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
  if (about->Width == 0 || (about->Flags & ~(unsigned)FLAGS) || !fits(about) || (sparse && deferred) ||
      (sparse && (about->Height == 0 || element.halves > 2 || element.block > 1)) || levels == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool layered = about->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  size_t longest = larger(larger(about->Width, about->Height), layered ? 1 : about->Depth);
  return levels <= 64U - (unsigned)__builtin_clzll(longest) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_ARRAY3D_DESCRIPTOR array_level(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned level) {
  CUDA_ARRAY3D_DESCRIPTOR one = *about;
  bool layered = about->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  one.Width = larger(about->Width >> level, 1);
  one.Height = about->Height ? larger(about->Height >> level, 1) : 0;
  one.Depth = about->Depth && !layered ? larger(about->Depth >> level, 1) : about->Depth;
  return one;
}

static size_t level_size(const CUDA_ARRAY3D_DESCRIPTOR *about, const struct array_element *element) {
  size_t columns = (about->Width + element->block - 1) / element->block;
  size_t rows = (larger(about->Height, 1) + element->block - 1) / element->block;
  size_t row = memory_round(columns * element->bytes, GOB_BYTES);
  size_t high = rows > 1 ? memory_round(rows, GOB_ROWS) : 1;
  return row * high * larger(about->Depth, 1) * element->halves / 2;
}

size_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned levels) {
  struct array_element element;
  size_t size = 0;
  array_element(about, &element);
  for (unsigned level = 0; level < levels; level++) {
    CUDA_ARRAY3D_DESCRIPTOR one = array_level(about, level);
    size += level_size(&one, &element);
  }
  return memory_round(size, ARRAY_ALIGN);
}

/* The standard tiles of 64 KiB: powers of two, one doubling less for each doubling of the element. */
static void tile_of(unsigned bytes, bool volume, CUDA_ARRAY_SPARSE_PROPERTIES *sparse) {
  static const unsigned char flat[][2] = {{8, 8}, {8, 7}, {7, 7}, {7, 6}, {6, 6}};
  static const unsigned char deep[][3] = {{6, 5, 5}, {5, 5, 5}, {5, 5, 4}, {5, 4, 4}, {4, 4, 4}};
  int place = __builtin_ctz(bytes);
  sparse->tileExtent.width = 1U << (volume ? deep[place][0] : flat[place][0]);
  sparse->tileExtent.height = 1U << (volume ? deep[place][1] : flat[place][1]);
  sparse->tileExtent.depth = volume ? 1U << deep[place][2] : 1;
}

CUDA_ARRAY_SPARSE_PROPERTIES array_sparse(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned levels) {
  CUDA_ARRAY_SPARSE_PROPERTIES sparse = {.miptailFirstLevel = levels};
  struct array_element element;
  bool layered = about->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  array_element(about, &element);
  tile_of(element.bytes, about->Depth && !layered, &sparse);
  for (unsigned level = 0; level < levels; level++) {
    CUDA_ARRAY3D_DESCRIPTOR one = array_level(about, level);
    bool tail = one.Width < sparse.tileExtent.width || one.Height < sparse.tileExtent.height ||
                (sparse.tileExtent.depth > 1 && one.Depth < sparse.tileExtent.depth);
    if (tail) {
      size_t rest = 0;
      for (unsigned l = level; l < levels; l++) {
        CUDA_ARRAY3D_DESCRIPTOR part = array_level(about, l);
        part.Depth = layered ? 1 : part.Depth; /* of one layer */
        rest += level_size(&part, &element);
      }
      sparse.miptailFirstLevel = level;
      sparse.miptailSize = memory_round(rest, ARRAY_TILE);
      break;
    }
  }
  return sparse;
}
