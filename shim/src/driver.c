/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds driver libraries by DT_SONAME and puts our hooks into their symbol tables, once each.
 *
 * The first copy of a library is *the* driver. A further one is made harmless: its
 * initialisation answers NOT_PERMITTED, and an uninitialised copy can do nothing.
 * No lock of ours is held while ld.so's is taken.
 */
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "elf_image.h"
#include "hook_map.h"
#include "libc_real.h"

enum { CANDIDATES = 8, COPIES = 16 };

struct candidate {
  struct aq_image image;
  enum aq_library library;
  const char *path;
};

struct search {
  unsigned long long loads;
  size_t count;
  struct candidate found[CANDIDATES];
};

const char *const aq_sonames[AQ_LIBRARIES] = {"libcuda.so.1", "libnvidia-ml.so.1"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
AQ_EARLY static unsigned long long loads_seen;
static struct {
  uintptr_t base; /* 0 = not seen */
  void *handle;
  bool unwritable;
} drivers[AQ_LIBRARIES];
static uintptr_t copies[COPIES];
static size_t copy_count;

static CUresult cuda_copy_refused(unsigned int flags) {
  (void)flags;
  return CUDA_ERROR_NOT_PERMITTED;
}

static nvmlReturn_t nvml_copy_refused(void) {
  return NVML_ERROR_NO_PERMISSION;
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  *(unsigned long long *)data = info->dlpi_adds;
  return 1;
}

static int collect(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  struct search *search = data;
  struct candidate *next = &search->found[search->count];
  search->loads = info->dlpi_adds;
  if (!info->dlpi_addr || !aq_image_read(&next->image, info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum))
    return 0;
  for (int library = 0; library < AQ_LIBRARIES; library++) {
    if (!aq_image_is(&next->image, aq_sonames[library]))
      continue;
    next->library = library;
    next->path = info->dlpi_name;
    search->count++;
    return search->count == CANDIDATES;
  }
  return 0;
}

/* Reads the untouched table first (real addresses, address map), then rewrites it. */
static bool take_over(const struct aq_image *image, enum aq_library library) {
  struct aq_redirect redirects[AQ_COUNT];
  size_t count = 0;
  for (int id = 0; id < AQ_COUNT; id++) {
    const struct aq_entry entry = aq_entry(id);
    ElfW(Sym) *symbol = entry.library == library ? aq_image_find(image, entry.name) : NULL;
    if (!symbol)
      continue;
    void *address = (void *)aq_image_address(image, symbol);
    __atomic_store_n(&aq_real_address[id], address, __ATOMIC_RELEASE);
    if (!entry.hook)
      continue;
    aq_hook_map_add(address, entry.hook);
    redirects[count++] = (struct aq_redirect){symbol, entry.hook};
  }
  return aq_image_redirect(image, redirects, count);
}

static void neuter(const struct aq_image *image, enum aq_library library) {
  static const char *const starts[] = {"cuInit", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"};
  const void *refusal =
      library == AQ_CUDA ? (const void *)cuda_copy_refused : (const void *)nvml_copy_refused;
  for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
    ElfW(Sym) *symbol = aq_image_find(image, starts[i]);
    if (symbol)
      aq_image_redirect(image, &(struct aq_redirect){symbol, refusal}, 1);
  }
}

static bool is_known(uintptr_t base) {
  for (int library = 0; library < AQ_LIBRARIES; library++)
    if (drivers[library].base == base)
      return true;
  for (size_t i = 0; i < copy_count; i++)
    if (copies[i] == base)
      return true;
  return false;
}

static void meet(const struct candidate *candidate, void *handle) {
  uintptr_t base = candidate->image.base;
  pthread_mutex_lock(&lock);
  if (is_known(base)) {
    pthread_mutex_unlock(&lock);
    return;
  }
  if (!drivers[candidate->library].base) {
    drivers[candidate->library].handle = handle;
    drivers[candidate->library].unwritable = !take_over(&candidate->image, candidate->library);
    drivers[candidate->library].base = base;
  } else {
    neuter(&candidate->image, candidate->library);
    copies[copy_count] = base;
    copy_count += copy_count + 1 < COPIES; /* past that, the last one is done again: no harm */
  }
  pthread_mutex_unlock(&lock);
}

void aq_driver_scan(void) {
  unsigned long long loads = 0;
  dl_iterate_phdr(count_loads, &loads);
  if (loads == __atomic_load_n(&loads_seen, __ATOMIC_ACQUIRE))
    return;
  int saved = errno;
  struct search search = {0};
  dl_iterate_phdr(collect, &search);
  for (size_t i = 0; i < search.count; i++) {
    /* Waits for a dlopen that another thread has under way, and keeps the object: hooks hold
     * pointers into it. */
    void *handle = aq_real_dlopen()(search.found[i].path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (handle)
      meet(&search.found[i], handle);
  }
  __atomic_store_n(&loads_seen, search.loads, __ATOMIC_RELEASE);
  errno = saved;
}

void aq_driver_neuter(void *handle) {
  struct link_map *map = NULL;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !map)
    return;
  while (map->l_prev)
    map = map->l_prev;
  for (; map; map = map->l_next) {
    struct aq_image image;
    if (!map->l_addr || !aq_image_of_map(&image, map))
      continue;
    for (int library = 0; library < AQ_LIBRARIES; library++)
      if (aq_image_is(&image, aq_sonames[library]) && image.base != drivers[library].base)
        neuter(&image, library);
  }
}

void *aq_resolve(enum aq_id id) {
  enum aq_library library = aq_entry(id).library;
  aq_driver_scan();
  if (!aq_real_address[id] && !drivers[library].base) {
    aq_real_dlopen()(aq_sonames[library], RTLD_LAZY);
    aq_driver_scan();
  }
  return __atomic_load_n(&aq_real_address[id], __ATOMIC_ACQUIRE);
}

/* The base name is what the symbol's begins with. */
static const struct {
  uint16_t id;
  uint8_t base_length;
  int version;
} abis[] = {
#define AQ_ABI(symbol, base, version) {AQ_ID_##symbol, sizeof(#base) - 1, version},
#include "abis.def"
#undef AQ_ABI
};

static void *ask_driver(const char *base, int version, uint64_t flags) {
  void *address = NULL;
  CUdriverProcAddressQueryResult status;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (AQ_REAL(cuGetProcAddress_v2))
    result = AQ_REAL(cuGetProcAddress_v2)(base, &address, version, flags, &status);
  else if (AQ_REAL(cuGetProcAddress))
    result = AQ_REAL(cuGetProcAddress)(base, &address, version, flags);
  return result == CUDA_SUCCESS ? address : NULL;
}

/* Oldest first: a driver that lacks an ABI answers with the one before, which is known by then. */
void aq_driver_learn(const char *name) {
  for (size_t i = 0; i < sizeof(abis) / sizeof(abis[0]); i++) {
    const struct aq_entry entry = aq_entry(abis[i].id);
    size_t length = strlen(entry.name);
    if (abis[i].base_length != strlen(name) || strncmp(entry.name, name, abis[i].base_length) != 0)
      continue;
    bool per_thread = length > 5 && !strncmp(entry.name + length - 5, "_pt", 3);
    uint64_t flags =
        per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void *address = ask_driver(name, abis[i].version, flags);
    pthread_mutex_lock(&lock);
    if (address && !aq_hook_of(address)) {
      void *none = NULL;
      __atomic_compare_exchange_n(&aq_real_address[abis[i].id], &none, address, false, __ATOMIC_RELEASE,
                                  __ATOMIC_RELAXED);
      aq_hook_map_add(address, entry.hook);
    }
    pthread_mutex_unlock(&lock);
  }
}

void *aq_hook_of_unwritable(const void *handle, const char *name) {
  for (int library = 0; library < AQ_LIBRARIES; library++) {
    if (!drivers[library].unwritable || drivers[library].handle != handle)
      continue;
    for (int id = 0; id < AQ_COUNT; id++)
      if (aq_real_address[id] && strcmp(aq_entry(id).name, name) == 0)
        return aq_entry(id).hook;
  }
  return NULL;
}
