/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes the address of cuMemAlloc_v2 (or another function) in one of many ways and uses it.
 *
 *   ways WAY [PLUGIN]    prints: OBJECT RESULT
 *
 * OBJECT is the file that the address lies in, RESULT what an allocation of 1 TiB answers
 * after cuInit and a context by the same way: 2 if limits hold, or what cuInit answered.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "driver_api.h"

#define HUGE_SIZE (1ULL << 40)

typedef void *finder(const char *name);

static void *handle;

static void *by_handle(const char *name) {
  return dlsym(handle, name);
}

static void *by_default(const char *name) {
  return dlsym(RTLD_DEFAULT, name);
}

static void *by_next(const char *name) {
  return dlsym(RTLD_NEXT, name);
}

/* No symbol of the driver has a version: dlvsym must find none of its own accord. */
static void *by_dlvsym(const char *name) {
  void *address = dlvsym(handle, name, "CUDA_1");
  return address ? address : dlsym(handle, name);
}

/* The real dlsym, past our export. */
static void *by_libc_dlsym(const char *name) {
  typedef void *dlsym_function(void *, const char *);
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  dlsym_function *real = NULL;
  for (int i = 0; i < 3 && !real; i++)
    real = (dlsym_function *)dlvsym(libc, "dlsym", versions[i]);
  return real ? real(handle, name) : NULL;
}

static void *by_get_proc_address(const char *name) {
  typedef CUresult getter(const char *, void **, int, uint64_t, int *);
  char base[64];
  void *address = NULL;
  getter *get = (getter *)dlsym(handle, "cuGetProcAddress_v2");
  snprintf(base, sizeof(base), "%s", name);
  char *suffix = strstr(base, "_v2");
  if (suffix)
    *suffix = '\0';
  return get && get(base, &address, 12000, 0, NULL) == CUDA_SUCCESS ? address : NULL;
}

static void *by_get_proc_address_11(const char *name) {
  typedef CUresult getter(const char *, void **, int, uint64_t);
  char base[64];
  void *address = NULL;
  getter *get = (getter *)dlsym(handle, "cuGetProcAddress");
  snprintf(base, sizeof(base), "%s", name);
  char *suffix = strstr(base, "_v2");
  if (suffix)
    *suffix = '\0';
  return get && get(base, &address, 11030, 0) == CUDA_SUCCESS ? address : NULL;
}

/* A plug-in that is linked against the driver answers for itself. */
static void *by_plugin(const char *name) {
  finder *find = (finder *)dlsym(handle, "plugin_find");
  return find ? find(name) : NULL;
}

static const struct {
  const char *name;
  finder *find;
  int flags; /* of dlopen; -1: linked or global, -2: dlmopen */
} ways[] = {
    {"handle", by_handle, RTLD_NOW},
    {"handle-lazy", by_handle, RTLD_LAZY | RTLD_GLOBAL},
    {"default", by_default, RTLD_NOW | RTLD_GLOBAL},
    {"default-without-driver", by_default, -1},
    {"next", by_next, RTLD_NOW | RTLD_GLOBAL},
    {"dlvsym", by_dlvsym, RTLD_NOW},
    {"libc-dlsym", by_libc_dlsym, RTLD_NOW},
    {"proc-address", by_get_proc_address, RTLD_NOW},
    {"proc-address-11", by_get_proc_address_11, RTLD_NOW},
    {"plugin", by_plugin, RTLD_NOW},
    {"plugin-deepbind", by_plugin, RTLD_NOW | RTLD_DEEPBIND},
    {"namespace", by_handle, -2},
    {"plugin-namespace", by_plugin, -2},
};

static CUresult use(finder *find) {
  CUcontext context;
  CUdeviceptr pointer;
  __typeof__(cuInit) *init = (__typeof__(cuInit) *)find("cuInit");
  __typeof__(cuCtxCreate_v2) *create = (__typeof__(cuCtxCreate_v2) *)find("cuCtxCreate_v2");
  __typeof__(cuMemAlloc_v2) *alloc = (__typeof__(cuMemAlloc_v2) *)find("cuMemAlloc_v2");
  if (!init || !create || !alloc)
    return -1;
  CUresult result = init(0);
  if (result != CUDA_SUCCESS)
    return result;
  result = create(&context, 0, 0);
  return result == CUDA_SUCCESS ? alloc(&pointer, HUGE_SIZE) : result;
}

int main(int argc, char **argv) {
  for (size_t i = 0; argc > 1 && i < sizeof(ways) / sizeof(ways[0]); i++) {
    if (strcmp(ways[i].name, argv[1]) != 0)
      continue;
    const char *file = argc > 2 ? argv[2] : "libcuda.so.1";
    if (ways[i].flags >= 0)
      handle = dlopen(file, ways[i].flags);
    else if (ways[i].flags == -2)
      handle = dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
    if (!handle && ways[i].flags != -1) {
      printf("%s\n", dlerror());
      return 1;
    }
    Dl_info info = {0};
    void *address = ways[i].find("cuMemAlloc_v2");
    dladdr(address, &info);
    printf("%s %d\n", info.dli_fname ? info.dli_fname : "nowhere", use(ways[i].find));
    return 0;
  }
  return 2;
}
