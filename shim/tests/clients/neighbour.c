/* SPDX-License-Identifier: Apache-2.0
 *
 * Another preload, as tracers are: it stands before dlopen, malloc and cuMemAlloc_v2, finds
 * the next ones with RTLD_NEXT, and says at exit how often it was passed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "driver_api.h"

static unsigned long opens, allocations, recursion;
static _Thread_local unsigned depth;

static void *next(const char *name) {
  return dlsym(RTLD_NEXT, name);
}

__attribute__((visibility("default"))) void *dlopen(const char *file, int mode) {
  typedef void *function(const char *, int);
  function *real = (function *)next("dlopen");
  opens++;
  recursion += depth > 0;
  depth++;
  void *handle = real(file, mode);
  depth--;
  return handle;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytes) {
  __typeof__(cuMemAlloc_v2) *real = (__typeof__(cuMemAlloc_v2) *)next("cuMemAlloc_v2");
  allocations++;
  recursion += depth > 0;
  depth++;
  CUresult result = real ? real(dptr, bytes) : CUDA_ERROR_NOT_FOUND;
  depth--;
  return result;
}

/* Before other constructors: whoever comes later must bear it. */
__attribute__((constructor)) static void start(void) {
  if (!next("malloc") || !next("dlsym"))
    abort();
}

__attribute__((destructor)) static void stop(void) {
  fprintf(stderr, "neighbour %lu %lu %lu\n", opens, allocations, recursion);
}
