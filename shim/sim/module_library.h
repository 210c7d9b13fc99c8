/* SPDX-License-Identifier: Apache-2.0
 *
 * What module.c does for library.c.
 */
#ifndef SIM_MODULE_LIBRARY_H
#define SIM_MODULE_LIBRARY_H

#include "module.h"

/* Unload the library's modules in all contexts. */
void module_end_all_of(CUlibrary library);

#endif
