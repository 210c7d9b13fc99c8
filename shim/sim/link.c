/* SPDX-License-Identifier: Apache-2.0
 *
 * The linker: what goes in comes out as one cubin with the kernels and the variables of all. It is as large
 * as all inputs together, since whoever loads it pays by its size.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "module.h"
#include "objects.h"

#define SECTIONS 5U /* beside one for each kernel: none, names, symbols, variables, filling */

struct CUlinkState_st {
  struct image *inputs;
  unsigned count;
  char *cubin; /* once complete */
};

static struct objects states = {.size = sizeof(struct CUlinkState_st)};

/* Lock the driver; the state is live. */
static CUresult enter(CUlinkState state) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  return objects_has(&states, state) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_HANDLE);
}

static CUresult create(CUlinkState *output) {
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!output) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUlinkState state = objects_take(&states);
  if (!state) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *output = state;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues,
                      CUlinkState *stateOut) {
  return numOptions > 0 && (!options || !optionValues) ? CUDA_ERROR_INVALID_VALUE : create(stateOut);
}
CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues,
                         CUlinkState *stateOut) {
  return cuLinkCreate(numOptions, options, optionValues, stateOut);
}

/* --- what goes in --- */

/* Takes the image over. */
static CUresult keep(CUlinkState state, struct image *image) {
  struct image *more = realloc(state->inputs, (state->count + 1) * sizeof *more);
  if (!more) {
    image_free(image);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  state->inputs = more;
  state->inputs[state->count++] = *image;
  return CUDA_SUCCESS;
}

static CUresult add_data(CUlinkState state, CUjitInputType type, const void *data, size_t size) {
  struct image image;
  char *copy = calloc(1, size + 64); /* PTX need not end with a 0 */
  if (!copy) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memcpy(copy, data, size);
  CUresult result = module_read(copy, &image);
  free(copy);
  if (result == CUDA_ERROR_INVALID_IMAGE && type == CU_JIT_INPUT_PTX) {
    return CUDA_ERROR_INVALID_PTX;
  }
  return result == CUDA_SUCCESS ? keep(state, &image) : result;
}

static CUresult add(CUlinkState state, CUjitInputType type, const void *data, size_t size, const char *path) {
  struct image image;
  CUresult result = enter(state);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (type >= CU_JIT_NUM_INPUT_TYPES || state->cubin || (!path && (!data || size == 0))) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!path) {
    return driver_leave(add_data(state, type, data, size));
  }
  result = module_read_file(path, &image);
  return driver_leave(result == CUDA_SUCCESS ? keep(state, &image) : result);
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                       unsigned int numOptions, CUjit_option *options, void **optionValues) {
  (void)name;
  bool missing = numOptions > 0 && (!options || !optionValues);
  return missing ? CUDA_ERROR_INVALID_VALUE : add(state, type, data, size, NULL);
}
CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                          unsigned int numOptions, CUjit_option *options, void **optionValues) {
  return cuLinkAddData(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
                       CUjit_option *options, void **optionValues) {
  bool missing = !path || (numOptions > 0 && (!options || !optionValues));
  return missing ? CUDA_ERROR_INVALID_VALUE : add(state, type, NULL, 0, path);
}
CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
                          CUjit_option *options, void **optionValues) {
  return cuLinkAddFile(state, type, path, numOptions, options, optionValues);
}

/* --- what comes out --- */

struct cubin {
  char *file;
  Elf64_Shdr *sections;
  Elf64_Sym *symbols;
  char *names;
  size_t used; /* of the names */
};

static Elf64_Word put_name(struct cubin *cubin, const char *prefix, const char *name) {
  size_t at = cubin->used;
  memcpy(cubin->names + at, prefix, strlen(prefix));
  memcpy(cubin->names + at + strlen(prefix), name, strlen(name) + 1);
  cubin->used += strlen(prefix) + strlen(name) + 1;
  return (Elf64_Word)at;
}

/* How much there is of all inputs. */
struct totals {
  unsigned kernels, variables;
  size_t names, code;
};

static struct totals count(CUlinkState state) {
  struct totals totals = {.names = 64}; /* those of the sections that are not kernels */
  for (unsigned i = 0; i < state->count; i++) {
    const struct image *image = &state->inputs[i];
    totals.kernels += image->count;
    totals.variables += image->variable_count;
    totals.code += image->bytes;
    for (unsigned k = 0; k < image->count; k++) {
      totals.names += sizeof ".text." + strlen(image->kernels[k].name);
    }
    for (unsigned v = 0; v < image->variable_count; v++) {
      totals.names += 1 + strlen(image->variables[v].name);
    }
  }
  return totals;
}

static void fill(struct cubin *cubin, CUlinkState state) {
  unsigned section = SECTIONS;
  unsigned symbol = 1;
  for (unsigned i = 0; i < state->count; i++) {
    const struct image *image = &state->inputs[i];
    for (unsigned k = 0; k < image->count; k++) {
      cubin->sections[section++] = (Elf64_Shdr){.sh_name = put_name(cubin, ".text.", image->kernels[k].name),
                                                .sh_type = SHT_PROGBITS,
                                                .sh_offset = sizeof(Elf64_Ehdr)};
    }
    for (unsigned v = 0; v < image->variable_count; v++) {
      cubin->symbols[symbol++] = (Elf64_Sym){.st_name = put_name(cubin, "", image->variables[v].name),
                                             .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                                             .st_shndx = 3,
                                             .st_size = image->variables[v].size};
    }
  }
}

static CUresult complete(CUlinkState state, size_t *size) {
  struct totals totals = count(state);
  size_t symbols_at = memory_round(sizeof(Elf64_Ehdr) + totals.code, 8);
  size_t symbols_size = (totals.variables + 1) * sizeof(Elf64_Sym);
  size_t names_at = symbols_at + symbols_size;
  size_t sections_at = memory_round(names_at + totals.names, 8);
  *size = sections_at + (SECTIONS + totals.kernels) * sizeof(Elf64_Shdr);
  char *file = totals.kernels + SECTIONS < SHN_LORESERVE ? calloc(1, *size) : NULL;
  if (!file) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct cubin cubin = {.file = file,
                        .sections = (Elf64_Shdr *)(file + sections_at),
                        .symbols = (Elf64_Sym *)(file + symbols_at),
                        .names = file + names_at,
                        .used = 1};
  Elf64_Ehdr header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                       .e_type = ET_EXEC,
                       .e_machine = EM_CUDA,
                       .e_version = EV_CURRENT,
                       .e_shoff = sections_at,
                       .e_ehsize = sizeof header,
                       .e_shentsize = sizeof(Elf64_Shdr),
                       .e_shnum = (Elf64_Half)(SECTIONS + totals.kernels),
                       .e_shstrndx = 1};
  memcpy(file, &header, sizeof header);
  cubin.sections[1] = (Elf64_Shdr){.sh_name = put_name(&cubin, ".strtab", ""),
                                   .sh_type = SHT_STRTAB,
                                   .sh_offset = names_at,
                                   .sh_size = totals.names};
  cubin.sections[2] = (Elf64_Shdr){.sh_name = put_name(&cubin, ".symtab", ""),
                                   .sh_type = SHT_SYMTAB,
                                   .sh_offset = symbols_at,
                                   .sh_size = symbols_size,
                                   .sh_link = 1,
                                   .sh_entsize = sizeof(Elf64_Sym)};
  cubin.sections[3] = (Elf64_Shdr){.sh_name = put_name(&cubin, ".nv.global", ""), .sh_type = SHT_NOBITS};
  cubin.sections[4] = (Elf64_Shdr){.sh_name = put_name(&cubin, ".nv.info", ""),
                                   .sh_type = SHT_PROGBITS,
                                   .sh_offset = sizeof header,
                                   .sh_size = totals.code};
  fill(&cubin, state);
  state->cubin = file;
  return CUDA_SUCCESS;
}

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut) {
  size_t size;
  CUresult result = enter(state);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!cubinOut || !sizeOut || state->count == 0 || state->cubin) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  result = complete(state, &size);
  if (result == CUDA_SUCCESS) {
    *cubinOut = state->cubin;
    *sizeOut = size;
  }
  return driver_leave(result);
}

CUresult cuLinkDestroy(CUlinkState state) {
  CUresult result = enter(state);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  for (unsigned i = 0; i < state->count; i++) {
    image_free(&state->inputs[i]);
  }
  free(state->inputs);
  free(state->cubin);
  objects_give(&states, state);
  return driver_leave(CUDA_SUCCESS);
}
