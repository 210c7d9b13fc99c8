/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds the functions that our exports dlsym, dlopen and dlmopen stand before.
 *
 * glibc moved them from libdl (GLIBC_2.2.5, aarch64 2.17) into libc (GLIBC_2.34).
 */
#include "libc_real.h"

#include <gnu/libc-version.h>
#include <stdbool.h>

#include "hot.h"

#if defined(__x86_64__)
#define OLD_VERSION         "GLIBC_2.2.5"
#define OLD_VERSION_DLMOPEN "GLIBC_2.3.4"
#else
#define OLD_VERSION         "GLIBC_2.17"
#define OLD_VERSION_DLMOPEN "GLIBC_2.17"
#endif

enum { DLSYM, DLOPEN, DLMOPEN };
enum { FIRST_MINOR_IN_LIBC = 34 };

AQ_EARLY static void *found[3];

/* No atoi: see lookup.c. */
static int minor_of(const char *digits) {
  int minor = 0;
  for (; *digits >= '0' && *digits <= '9' && minor < FIRST_MINOR_IN_LIBC; digits++)
    minor = minor * 10 + (*digits - '0');
  return minor;
}

/* A look-up that fails allocates (dlerror), so the likely version comes first. */
static void *next(const char *name, const char *old_version) {
  const char *version = gnu_get_libc_version();
  bool old = version[0] == '2' && version[1] == '.' && minor_of(version + 2) < FIRST_MINOR_IN_LIBC;
  const char *first = old ? old_version : "GLIBC_2.34";
  const char *second = old ? "GLIBC_2.34" : old_version;
  void *address = dlvsym(RTLD_NEXT, name, first);
  return address ? address : dlvsym(RTLD_NEXT, name, second);
}

static void *real(int which, const char *name, const char *old_version) {
  void *address = __atomic_load_n(&found[which], __ATOMIC_RELAXED);
  if (!address) {
    address = next(name, old_version);
    __atomic_store_n(&found[which], address, __ATOMIC_RELAXED);
  }
  return address;
}

aq_dlsym_fn *aq_real_dlsym(void) {
  return (aq_dlsym_fn *)real(DLSYM, "dlsym", OLD_VERSION);
}

aq_dlopen_fn *aq_real_dlopen(void) {
  return (aq_dlopen_fn *)real(DLOPEN, "dlopen", OLD_VERSION);
}

aq_dlmopen_fn *aq_real_dlmopen(void) {
  return (aq_dlmopen_fn *)real(DLMOPEN, "dlmopen", OLD_VERSION_DLMOPEN);
}
