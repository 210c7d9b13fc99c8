/* SPDX-License-Identifier: Apache-2.0
 *
 * A plug-in linked against the driver, as an extension module is.
 */
#include <string.h>

#include "driver_api.h"

__attribute__((visibility("default"))) void *plugin_find(const char *name);

void *plugin_find(const char *name) {
  if (!strcmp(name, "cuInit"))
    return (void *)cuInit;
  if (!strcmp(name, "cuCtxCreate_v2"))
    return (void *)cuCtxCreate_v2;
  if (!strcmp(name, "cuMemAlloc_v2"))
    return (void *)cuMemAlloc_v2;
  return NULL;
}
