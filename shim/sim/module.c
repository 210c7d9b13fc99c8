/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules: images in contexts. Their code takes memory when a function of theirs is first used (lazy loading,
 * the default since CUDA 12.2), or at once with CUDA_MODULE_LOADING=EAGER.
 */
#include "module.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "context_memory.h"
#include "memory.h"
#include "module_library.h"

#define MODULE_MARK   0x444f4d53U
#define FUNCTION_MARK 0x434e5546U
#define CODE_PAGE     4096U

static CUmodule all_modules;
static CUmodule free_modules;
static CUfunction free_functions;

bool module_is_live(const struct CUmod_st *module) {
  return module && module->mark == MODULE_MARK && module->serial == module->context->serial;
}

bool function_is_live(const struct CUfunc_st *function) {
  return function && function->mark == FUNCTION_MARK && module_is_live(function->module);
}

const struct image_kernel *function_described(const struct CUfunc_st *function) {
  return &function->module->image->kernels[function->index];
}

/* Variables included. */
static uint64_t code_bytes(const struct CUmod_st *module) {
  return memory_round(module->image->bytes, CODE_PAGE) +
         memory_round(module->image->variable_bytes, CODE_PAGE);
}

static bool take_addresses(struct CUmod_st *module) {
  if (module->image->variable_bytes == 0) {
    return true;
  }
  module->variables = space_take(module->image->variable_bytes, false);
  if (module->variables) {
    module->variables->kind = SPACE_VARIABLES;
    module->variables->owner = module->context;
  }
  return module->variables;
}

CUresult module_load(struct CUmod_st *module) {
  if (module->loaded) {
    return CUDA_SUCCESS;
  }
  CUresult result = context_code(module->context, code_bytes(module));
  if (result == CUDA_SUCCESS && !take_addresses(module)) {
    context_code_end(module->context, code_bytes(module));
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  module->loaded = result == CUDA_SUCCESS;
  return result;
}

CUresult function_load(struct CUfunc_st *function) {
  struct CUmod_st *module = function->module;
  CUresult result = module_load(module);
  if (result != CUDA_SUCCESS || function->loaded) {
    return result;
  }
  uint64_t more = function_described(function)->more_bytes;
  result = more ? context_code(module->context, more) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    function->loaded = true;
    module->more_bytes += more;
  }
  return result;
}

CUresult module_read(const void *data, struct image *image) {
  switch (image_read(data, image)) {
  case IMAGE_OK:
    return CUDA_SUCCESS;
  case IMAGE_NO_MEMORY:
    return CUDA_ERROR_OUT_OF_MEMORY;
  default:
    return CUDA_ERROR_INVALID_IMAGE;
  }
}

CUresult module_read_file(const char *path, struct image *image) {
  struct stat file;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  char *data = fstat(fd, &file) == 0 && file.st_size >= 0 ? calloc(1, (size_t)file.st_size + 64) : NULL;
  ssize_t got = data ? read(fd, data, (size_t)file.st_size) : -1;
  close(fd);
  CUresult result = !data     ? CUDA_ERROR_OUT_OF_MEMORY
                    : got < 0 ? CUDA_ERROR_FILE_NOT_FOUND
                              : module_read(data, image);
  free(data);
  return result;
}

static bool is_eager(void) {
  const char *setting = getenv("CUDA_MODULE_LOADING");
  return setting && strcasecmp(setting, "EAGER") == 0;
}

static CUmodule make(CUcontext context) {
  CUmodule module = free_modules ? free_modules : calloc(1, sizeof *module);
  if (!module) {
    return NULL;
  }
  free_modules = module->next_of_process;
  *module = (struct CUmod_st){
      .mark = MODULE_MARK, .context = context, .serial = context->serial, .next_of_process = all_modules};
  all_modules = module;
  return module;
}

static void unmake(CUmodule module) {
  CUmodule *link = &all_modules;
  while (*link != module) {
    link = &(*link)->next_of_process;
  }
  *link = module->next_of_process;
  while (module->functions) {
    CUfunction function = module->functions;
    module->functions = function->next;
    function->mark = 0;
    function->next = free_functions;
    free_functions = function;
  }
  if (module->loaded && module->serial == module->context->serial) {
    context_code_end(module->context, code_bytes(module) + module->more_bytes);
    if (module->variables) {
      space_give(module->variables);
    }
  }
  image_free(&module->own);
  module->mark = 0;
  module->next_of_process = free_modules;
  free_modules = module;
}

CUresult library_module(CUlibrary library, CUcontext context, CUmodule *module) {
  for (CUmodule known = library->modules; known; known = known->next) {
    if (known->context == context && known->serial == context->serial) {
      *module = known;
      return CUDA_SUCCESS;
    }
  }
  CUmodule made = make(context);
  if (!made) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  made->image = &library->image;
  made->library = library;
  made->next = library->modules;
  library->modules = made;
  *module = made;
  return CUDA_SUCCESS;
}

void module_end_all_of(CUlibrary library) {
  while (library->modules) {
    CUmodule module = library->modules;
    library->modules = module->next;
    unmake(module);
  }
}

CUfunction module_function(CUmodule module, unsigned index) {
  for (CUfunction known = module->functions; known; known = known->next) {
    if (known->index == index) {
      return known;
    }
  }
  CUfunction function = free_functions ? free_functions : calloc(1, sizeof *function);
  if (!function) {
    return NULL;
  }
  free_functions = function->next;
  *function = (struct CUfunc_st){.mark = FUNCTION_MARK,
                                 .index = index,
                                 .module = module,
                                 .dynamic_shared = 48 << 10,
                                 .carveout = -1,
                                 .next = module->functions};
  function->old.block[0] = function->old.block[1] = function->old.block[2] = 1;
  module->functions = function;
  return function;
}

/* Takes the image over. */
static CUresult load(CUcontext context, struct image *image, CUmodule *output) {
  CUmodule module = make(context);
  if (!module) {
    image_free(image);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  module->own = *image;
  module->image = &module->own;
  CUresult result = is_eager() ? module_load(module) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) {
    unmake(module);
    return result;
  }
  *output = module;
  return CUDA_SUCCESS;
}

static CUresult load_from(CUmodule *module, const void *data, const char *path) {
  CUcontext context;
  struct image image;
  CUresult result = memory_enter(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!module || (!data && !path)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = path ? module_read_file(path, &image) : module_read(data, &image);
  return driver_leave(result == CUDA_SUCCESS ? load(context, &image, module) : result);
}

CUresult cuModuleLoad(CUmodule *module, const char *fname) {
  return load_from(module, NULL, fname);
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  return load_from(module, image, NULL);
}
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin) {
  return load_from(module, fatCubin, NULL);
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                            CUjit_option *options, void **optionValues) {
  return numOptions > 0 && (!options || !optionValues) ? CUDA_ERROR_INVALID_VALUE
                                                       : load_from(module, image, NULL);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
  if (!mode) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *mode = is_eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult module_enter(CUmodule module) {
  CUcontext context;
  CUresult result = memory_enter(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return module_is_live(module) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuModuleUnload(CUmodule hmod) {
  CUresult result = module_enter(hmod);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (hmod->library) {
    return driver_leave(CUDA_ERROR_NOT_PERMITTED); /* cuda.h: unloaded with its library */
  }
  unmake(hmod);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
  CUresult result = module_enter(hmod);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!hfunc || !name || !*name) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  int index = image_find(hmod->image, name);
  CUfunction function = index < 0 ? NULL : module_function(hmod, (unsigned)index);
  if (!function) {
    return driver_leave(index < 0 ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_OUT_OF_MEMORY);
  }
  *hfunc = function;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod) {
  CUresult result = module_enter(mod);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!count) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *count = mod->image->count;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod) {
  CUresult result = module_enter(mod);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!functions) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (unsigned i = 0; i < numFunctions && i < mod->image->count; i++) {
    functions[i] = module_function(mod, i);
  }
  return driver_leave(CUDA_SUCCESS);
}
