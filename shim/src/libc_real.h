/* SPDX-License-Identifier: Apache-2.0
 *
 * libc's own dlsym, dlopen and dlmopen (or those of the next preload).
 */
#ifndef ALIQUOT_LIBC_REAL_H
#define ALIQUOT_LIBC_REAL_H

#include <dlfcn.h>

typedef void *aq_dlsym_fn(void *handle, const char *name);
typedef void *aq_dlopen_fn(const char *file, int mode);
typedef void *aq_dlmopen_fn(Lmid_t space, const char *file, int mode);

/* Usable before our constructor has run; any thread. */
aq_dlsym_fn *aq_real_dlsym(void);
aq_dlopen_fn *aq_real_dlopen(void);
aq_dlmopen_fn *aq_real_dlmopen(void);

#endif
