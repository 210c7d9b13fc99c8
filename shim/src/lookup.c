/* SPDX-License-Identifier: Apache-2.0
 *
 * What dlsym, dlopen and dlmopen do on the way through (entry.S): make sure that a driver is
 * rewritten before anyone can look into it. The real dlsym then finds our hooks by itself,
 * with the caller's handle, errors and "not found".
 */
#include <string.h>

#include "driver.h"
#include "elf_file.h"
#include "libc_real.h"

/* Where entry.S goes next. */
struct aq_way {
  const void *jump; /* NULL: return `answer` to the caller */
  void *answer;
};

__attribute__((used)) struct aq_way aq_dlsym_enter(void *handle, const char *name);
__attribute__((used)) struct aq_way aq_dlopen_enter(const char *file, int mode);
__attribute__((used)) struct aq_way aq_dlmopen_enter(Lmid_t space, const char *file, int mode);

static bool is_driver_name(const char *file) {
  static const char *const stems[AQ_LIBRARIES] = {"libcuda.so", "libnvidia-ml.so"};
  const char *slash = strrchr(file, '/');
  const char *name = slash ? slash + 1 : file;
  for (int library = 0; library < AQ_LIBRARIES; library++)
    if (!strncmp(name, stems[library], strlen(stems[library])))
      return true;
  return false;
}

/* Without libc: another preload that is being set up may ask for its functions before it can stand
 * in for them. */
static bool concerns_a_driver(const char *name) {
  if (name[0] == 'c')
    return name[1] == 'u';
  return name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l';
}

struct aq_way aq_dlsym_enter(void *handle, const char *name) {
  struct aq_way way = {(const void *)aq_real_dlsym(), NULL};
  if (!name || !concerns_a_driver(name))
    return way;
  aq_driver_scan();
  way.answer = aq_hook_of_unwritable(handle, name);
  if (way.answer)
    way.jump = NULL;
  return way;
}

/* A plug-in that looks into its own dependencies first, before we see them: bring in the
 * driver that it needs and rewrite it, so that it is bound to our hooks. */
static void prepare_dependencies(const char *file) {
  if (!strchr(file, '/'))
    return; /* where ld.so would find it is not ours to guess */
  for (int library = 0; library < AQ_LIBRARIES; library++)
    if (aq_file_needs(file, aq_sonames[library]) && aq_real_dlopen()(aq_sonames[library], RTLD_LAZY))
      aq_driver_scan();
}

struct aq_way aq_dlopen_enter(const char *file, int mode) {
  struct aq_way way = {(const void *)aq_real_dlopen(), NULL};
  if (!file)
    return way;
  if (is_driver_name(file)) {
    way.answer = aq_real_dlopen()(file, mode);
    if (way.answer) {
      aq_driver_scan();
      way.jump = NULL;
    } /* else: again as the caller, with its RUNPATH, and for its dlerror */
  } else if (mode & RTLD_DEEPBIND) {
    prepare_dependencies(file);
  }
  return way;
}

/* The same for a new namespace, which gets its own copy of the driver: a harmless one. */
static void *open_beside_neutered_driver(Lmid_t space, const char *file, int mode) {
  for (int library = 0; library < AQ_LIBRARIES; library++) {
    if (!aq_file_needs(file, aq_sonames[library]))
      continue;
    void *copy = aq_real_dlmopen()(space, aq_sonames[library], RTLD_LAZY);
    if (!copy)
      continue;
    aq_driver_neuter(copy);
    if (space == LM_ID_NEWLM)
      dlinfo(copy, RTLD_DI_LMID, &space);
  }
  void *handle = aq_real_dlmopen()(space, file, mode);
  if (handle)
    aq_driver_neuter(handle);
  return handle;
}

struct aq_way aq_dlmopen_enter(Lmid_t space, const char *file, int mode) {
  struct aq_way way = {(const void *)aq_real_dlmopen(), NULL};
  if (!file || space == LM_ID_BASE) {
    if (file && (mode & RTLD_DEEPBIND))
      prepare_dependencies(file);
    return way;
  }
  way.jump = NULL;
  if (is_driver_name(file)) {
    way.answer = aq_real_dlopen()(file, mode & ~RTLD_GLOBAL);
    aq_driver_scan();
  } else {
    way.answer = open_beside_neutered_driver(space, file, mode);
  }
  return way;
}

/* If the program is linked against the driver, it is mapped by now. Nothing else is done
 * before the first call of CUDA or NVML. */
__attribute__((constructor)) static void start(void) {
  aq_driver_scan();
}
