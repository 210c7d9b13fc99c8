/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA arrays and mipmapped arrays: what they take, and what is mapped into
 * those that take nothing themselves. All want the driver's lock held.
 *
 * Arrays are laid out in blocks (GOBs) of 64 bytes by 8 rows, as NVIDIA's GPUs
 * do for textures; sparse ones in the standard tiles of 64 KiB.
 */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "objects.h"
#include "vmm.h"

#define ARRAY_TILE   (64ULL << 10)
#define ARRAY_ALIGN  512ULL
#define ARRAY_LEVELS 18U /* the most that 131072 elements can have */

/* A part of an array with memory. */
struct array_part {
  struct array_part *next;
  CUarrayMapInfo info; /* which part */
  struct vmm_memory *memory;
};

/* What arrays and mipmapped arrays have in common. */
struct array_body {
  CUDA_ARRAY3D_DESCRIPTOR about;
  unsigned levels;
  size_t size; /* bytes of all levels */
  bool charged;
  CUcontext context;
  struct array_part *parts;
};

struct CUarray_st {
  struct array_body body;
  struct CUmipmappedArray_st *mipmap; /* an array of a level is its mipmapped array's */
};

struct CUmipmappedArray_st {
  struct array_body body;
  CUarray level[ARRAY_LEVELS];
};

/* An element, or a block of 4 x 4 of the compressed formats. */
struct array_element {
  unsigned bytes;
  unsigned block;  /* 1 or 4 elements a side */
  unsigned halves; /* planar: of how many halves of a plane it consists */
};

/* INVALID_VALUE: no such format, or not with so many channels; NOT_SUPPORTED: video formats but NV12, P010,
 * P016. */
CUresult array_element(const CUDA_ARRAY3D_DESCRIPTOR *about, struct array_element *element);

/* Whether such an array can be. */
CUresult array_check(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned levels);

/* Descriptor of a level. */
CUDA_ARRAY3D_DESCRIPTOR array_level(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned level);

/* Bytes of all levels. */
size_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned levels);

/* Tiles and mip tail of a sparse array. */
CUDA_ARRAY_SPARSE_PROPERTIES array_sparse(const CUDA_ARRAY3D_DESCRIPTOR *about, unsigned levels);

/* Take memory (not for sparse and deferred ones) and give it back. */
CUresult array_begin(struct array_body *body, CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *about,
                     unsigned levels);
void array_end(struct array_body *body);

/* Let go of all memory that is mapped into it. */
void array_unmap_all(struct array_body *body);

bool array_is(CUarray array);
bool mipmap_is(CUmipmappedArray mipmap);

/* A mipmapped array over memory that is not CUDA's; the arguments have been checked. */
CUresult mipmap_over_external(CUmipmappedArray *made, CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *about,
                              unsigned levels);

/* The context ends, and its arrays with it. */
void arrays_forget(CUcontext context);
void mipmaps_forget(CUcontext context);

/* A level of a mipmapped array as an array; NULL: no host memory. */
CUarray array_of_level(CUmipmappedArray mipmap, unsigned level);
void array_forget_level(CUarray array);

#endif
