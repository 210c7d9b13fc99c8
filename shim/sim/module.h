/* SPDX-License-Identifier: Apache-2.0
 *
 * Loaded code: libraries (without a context), their modules in contexts, and functions. All of it wants the
 * driver's lock held.
 */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "engine.h"
#include "image.h"
#include "space.h"

struct CUlib_st {
  uint32_t mark; /* 0 = unloaded */
  struct image image;
  struct CUkern_st *kernels;
  struct CUmod_st *modules; /* in contexts */
  struct CUlib_st *next;
};

/* Launches take either handle: both begin with a mark. */
struct CUkern_st {
  uint32_t mark;
  unsigned index;
  struct CUlib_st *library;
  struct CUkern_st *next;
};

struct CUmod_st {
  uint32_t mark; /* 0 = unloaded */
  struct image own;
  struct image *image; /* `own`, or the library's */
  struct CUlib_st *library;
  CUcontext context;
  uint64_t serial;               /* of the context */
  bool loaded;                   /* its code is on the GPU */
  uint64_t more_bytes;           /* that its functions have taken since */
  struct space_block *variables; /* their memory, once the code is on the GPU; NULL: it has none */
  struct CUfunc_st *functions;
  struct CUmod_st *next;            /* in the library */
  struct CUmod_st *next_of_process; /* all modules */
};

struct CUfunc_st {
  uint32_t mark;
  unsigned index;
  bool loaded; /* has been, once */
  struct CUmod_st *module;
  int dynamic_shared; /* most that a launch may ask for */
  int carveout;
  struct { /* of the CUDA 1 way to launch */
    unsigned block[3];
    unsigned shared;
  } old;
  struct CUfunc_st *next; /* in the module */
};

bool module_is_live(const struct CUmod_st *module);

/* Lock the driver, with a current context. INVALID_HANDLE unless the module is live. */
CUresult module_enter(CUmodule module);

/* Bring the module's code onto the GPU, with its variables. OUT_OF_MEMORY. */
CUresult module_load(struct CUmod_st *module);

/* Bring the function's code onto the GPU: its module's, and what the first launch takes beside.
 * OUT_OF_MEMORY. */
CUresult function_load(struct CUfunc_st *function);

/* Function of a module by index of the image; NULL: no memory. */
CUfunction module_function(struct CUmod_st *module, unsigned index);

/* The library's module in a context, made at its first use. */
CUresult library_module(CUlibrary library, CUcontext context, CUmodule *module);

/* The function behind either handle, in the context. INVALID_HANDLE. */
CUresult function_of(CUfunction handle, CUcontext context, CUfunction *function);

bool function_is_live(const struct CUfunc_st *function);
bool kernel_is_live(const struct CUkern_st *kernel);
const struct image_kernel *function_described(const struct CUfunc_st *function);

/* Image from memory or from a file, as a CUDA error. */
CUresult module_read(const void *data, struct image *image);
CUresult module_read_file(const char *path, struct image *image);

/* What one launch takes of its GPU. */
struct engine_cost function_cost(const struct CUfunc_st *function, uint64_t blocks, unsigned threads,
                                 void **parameters, void **extra);

#endif
