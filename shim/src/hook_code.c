/* SPDX-License-Identifier: Apache-2.0
 *
 * Loaded code. How much of an image the driver puts on the GPU, and when, is its own business:
 * the image's size counts until the agent has measured.
 */
#include <sys/stat.h>

#include "books.h"
#include "hooks.h"
#include "image.h"
#include "prices.h"
#include "state.h"

struct load {
  struct aq_share *share; /* NULL: not ours to count */
  CUcontext context;
  uint64_t bytes;
};

/* Without a current context there is nothing to load to yet: a library is loaded into contexts when
 * they come. */
static CUresult begin(struct load *load, uint64_t bytes) {
  struct aq_here here;
  *load = (struct load){.bytes = bytes};
  if (aq_depth > 0)
    return CUDA_SUCCESS;
  if (!aq_is_ready())
    return CUDA_ERROR_NOT_INITIALIZED;
  if (aq_here(&here) != CUDA_SUCCESS)
    return CUDA_SUCCESS;
  load->share = here.share;
  load->context = here.context;
  bool fits = !aq_is_full(here.share) && aq_code_reserve(here.share, bytes);
  return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* `handle` is what was loaded. A record that there is no memory for leaves the code counted. */
static CUresult end(const struct load *load, CUresult result, const void *handle, bool of_context) {
  if (!load->share)
    return result;
  if (result != CUDA_SUCCESS)
    aq_code_cancel(load->share, load->bytes);
  else
    aq_note(&(struct aq_record){.thing = AQ_CODE,
                                .key = (uintptr_t)handle,
                                .bytes = load->bytes,
                                .context = of_context ? load->context : NULL,
                                .share = (uint8_t)load->share->index});
  return result;
}

static uint64_t file_bytes(const char *path) {
  struct stat status;
  return path && stat(path, &status) == 0 ? (uint64_t)status.st_size : 0;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
  struct load load;
  if (!AQ_REAL(cuModuleLoad))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = begin(&load, file_bytes(path));
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuModuleLoad)(module, path);
  return end(&load, result, result == CUDA_SUCCESS ? *module : NULL, true);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  struct load load;
  if (!AQ_REAL(cuModuleLoadData))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = begin(&load, aq_image_bytes(image));
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuModuleLoadData)(module, image);
  return end(&load, result, result == CUDA_SUCCESS ? *module : NULL, true);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                            void **values) {
  struct load load;
  if (!AQ_REAL(cuModuleLoadDataEx))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = begin(&load, aq_image_bytes(image));
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuModuleLoadDataEx)(module, image, count, options, values);
  return end(&load, result, result == CUDA_SUCCESS ? *module : NULL, true);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  struct load load;
  if (!AQ_REAL(cuModuleLoadFatBinary))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = begin(&load, aq_image_bytes(image));
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuModuleLoadFatBinary)(module, image);
  return end(&load, result, result == CUDA_SUCCESS ? *module : NULL, true);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                           unsigned int count, CUlibraryOption *library_options, void **library_values,
                           unsigned int library_count) {
  struct load load;
  if (!AQ_REAL(cuLibraryLoadData))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = begin(&load, aq_image_bytes(code));
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuLibraryLoadData)(library, code, options, values, count, library_options, library_values,
                                      library_count);
  return end(&load, result, result == CUDA_SUCCESS ? *library : NULL, false);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                               unsigned int count, CUlibraryOption *library_options, void **library_values,
                               unsigned int library_count) {
  struct load load;
  if (!AQ_REAL(cuLibraryLoadFromFile))
    return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = begin(&load, file_bytes(path));
  if (result != CUDA_SUCCESS)
    return result;
  result = AQ_REAL(cuLibraryLoadFromFile)(library, path, options, values, count, library_options,
                                          library_values, library_count);
  return end(&load, result, result == CUDA_SUCCESS ? *library : NULL, false);
}

/* Taken out before the driver is asked, as its handle may be used again at once. */
static bool taken_out(const void *handle, struct aq_freed *freed) {
  return aq_depth == 0 && aq_is_ready() && aq_free_begin(AQ_CODE, (uintptr_t)handle, freed);
}

static CUresult unloaded(CUresult result, const struct aq_freed *freed) {
  aq_prices_doubt(); /* its functions' handles may be used again */
  if (result == CUDA_SUCCESS)
    aq_code_cancel(&aq_shares[freed->record.share], freed->record.bytes);
  else
    aq_note(&freed->record);
  return result;
}

CUresult cuModuleUnload(CUmodule module) {
  struct aq_freed freed;
  if (!AQ_REAL(cuModuleUnload))
    return CUDA_ERROR_NOT_SUPPORTED;
  bool ours = taken_out(module, &freed);
  CUresult result = AQ_REAL(cuModuleUnload)(module);
  return ours ? unloaded(result, &freed) : result;
}

CUresult cuLibraryUnload(CUlibrary library) {
  struct aq_freed freed;
  if (!AQ_REAL(cuLibraryUnload))
    return CUDA_ERROR_NOT_SUPPORTED;
  bool ours = taken_out(library, &freed);
  CUresult result = AQ_REAL(cuLibraryUnload)(library);
  return ours ? unloaded(result, &freed) : result;
}
