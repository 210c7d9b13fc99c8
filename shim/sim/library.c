/* SPDX-License-Identifier: Apache-2.0
 *
 * Libraries: images that belong to no context, and their kernels.
 */
#include <stdlib.h>

#include "capture.h"
#include "module.h"
#include "module_library.h"

#define LIBRARY_MARK 0x4942494cU
#define KERNEL_MARK  0x4e52454bU

static CUlibrary free_libraries;
static CUkernel free_kernels;

static bool is_live(const struct CUlib_st *library) {
  return library && library->mark == LIBRARY_MARK;
}

bool kernel_is_live(const struct CUkern_st *kernel) {
  return kernel && kernel->mark == KERNEL_MARK && is_live(kernel->library);
}

/* cuda.h: libraries may be loaded without a context. */
static CUresult enter(void) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return capture_forbids_unsafe() ? driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

static CUresult load(CUlibrary *output, const void *data, const char *path) {
  struct image image;
  CUresult result = enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!output || (!data && !path)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = path ? module_read_file(path, &image) : module_read(data, &image);
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  CUlibrary library = free_libraries ? free_libraries : calloc(1, sizeof *library);
  if (!library) {
    image_free(&image);
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  free_libraries = library->next;
  *library = (struct CUlib_st){.mark = LIBRARY_MARK, .image = image};
  *output = library;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                           void **jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions) {
  bool missing = (numJitOptions > 0 && (!jitOptions || !jitOptionsValues)) ||
                 (numLibraryOptions > 0 && (!libraryOptions || !libraryOptionValues));
  return missing ? CUDA_ERROR_INVALID_VALUE : load(library, code, NULL);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions,
                               void **jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions) {
  bool missing = (numJitOptions > 0 && (!jitOptions || !jitOptionsValues)) ||
                 (numLibraryOptions > 0 && (!libraryOptions || !libraryOptionValues));
  return missing ? CUDA_ERROR_INVALID_VALUE : load(library, NULL, fileName);
}

/* Lock the driver; the library is live. */
static CUresult enter_library(CUlibrary library) {
  CUresult result = enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return is_live(library) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuLibraryUnload(CUlibrary library) {
  CUresult result = enter_library(library);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  module_end_all_of(library);
  while (library->kernels) {
    CUkernel kernel = library->kernels;
    library->kernels = kernel->next;
    kernel->mark = 0;
    kernel->next = free_kernels;
    free_kernels = kernel;
  }
  image_free(&library->image);
  library->mark = 0;
  library->next = free_libraries;
  free_libraries = library;
  return driver_leave(CUDA_SUCCESS);
}

static CUkernel kernel_at(CUlibrary library, unsigned index) {
  for (CUkernel known = library->kernels; known; known = known->next) {
    if (known->index == index) {
      return known;
    }
  }
  CUkernel kernel = free_kernels ? free_kernels : calloc(1, sizeof *kernel);
  if (!kernel) {
    return NULL;
  }
  free_kernels = kernel->next;
  *kernel =
      (struct CUkern_st){.mark = KERNEL_MARK, .index = index, .library = library, .next = library->kernels};
  library->kernels = kernel;
  return kernel;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name) {
  CUresult result = enter_library(library);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pKernel || !name || !*name) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  int index = image_find(&library->image, name);
  CUkernel kernel = index < 0 ? NULL : kernel_at(library, (unsigned)index);
  if (!kernel) {
    return driver_leave(index < 0 ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_OUT_OF_MEMORY);
  }
  *pKernel = kernel;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib) {
  CUresult result = enter_library(lib);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!count) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *count = lib->image.count;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib) {
  CUresult result = enter_library(lib);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!kernels) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (unsigned i = 0; i < numKernels && i < lib->image.count; i++) {
    kernels[i] = kernel_at(lib, i);
  }
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library) {
  CUcontext context;
  CUresult result = enter_library(library);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pMod) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = context_current(&context);
  return driver_leave(result == CUDA_SUCCESS ? library_module(library, context, pMod) : result);
}

CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel) {
  CUcontext context;
  CUresult result = enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pFunc) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!kernel_is_live(kernel)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  result = context_current(&context);
  return driver_leave(result == CUDA_SUCCESS ? function_of((CUfunction)kernel, context, pFunc) : result);
}

CUresult function_of(CUfunction handle, CUcontext context, CUfunction *function) {
  if (!handle) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (handle->mark != KERNEL_MARK) {
    *function = handle;
    return function_is_live(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  CUkernel kernel = (CUkernel)handle;
  CUmodule module;
  if (!kernel_is_live(kernel)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  CUresult result = library_module(kernel->library, context, &module);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *function = module_function(module, kernel->index);
  return *function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

#define OF_KERNEL(NAME, TYPE, EXPRESSION)                                                                    \
  CUresult NAME(TYPE *output, CUkernel kernel) {                                                             \
    CUresult result = driver_enter();                                                                        \
    if (result != CUDA_SUCCESS) {                                                                            \
      return result;                                                                                         \
    }                                                                                                        \
    if (!kernel_is_live(kernel) || !output) {                                                                \
      return driver_leave(output ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);                    \
    }                                                                                                        \
    *output = (EXPRESSION);                                                                                  \
    return driver_leave(CUDA_SUCCESS);                                                                       \
  }

OF_KERNEL(cuKernelGetName, const char *, kernel->library->image.kernels[kernel->index].name)
OF_KERNEL(cuKernelGetLibrary, CUlibrary, kernel->library)
