/* SPDX-License-Identifier: Apache-2.0
 *
 * The loaded driver libraries: finding them, rewriting their symbol tables, and what their
 * own functions are called by address.
 */
#ifndef ALIQUOT_DRIVER_H
#define ALIQUOT_DRIVER_H

#include <stdbool.h>

#include "hooks.h"

extern const char *const aq_sonames[AQ_LIBRARIES];

/* Rewrites a driver that was loaded since the last call. Cheap when nothing was loaded. */
void aq_driver_scan(void);

/* Makes every driver copy in the namespace of `handle` (dlmopen) answer NOT_PERMITTED. */
void aq_driver_neuter(void *handle);

/* The hook that stands before the driver's function at `address`; NULL if none does. */
void *aq_hook_of(const void *address);

/* True if some version of the base name `name` (cuMemAlloc) is hooked. */
bool aq_base_is_hooked(const char *name);

/* For a driver whose cuGetProcAddress answers with addresses that it does not export: asks it for each
 * hooked ABI of the base name `name`, so that aq_hook_of knows them. */
void aq_driver_learn(const char *name);

/* A hook for `name` in the driver `handle` whose table could not be rewritten; else NULL. */
void *aq_hook_of_unwritable(const void *handle, const char *name);

#endif
