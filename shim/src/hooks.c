/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of hooks.def.
 */
#include "abi.h"

#include <stdint.h>

/* Only addresses are taken here; driver_api.h and nvml_api.h have the types. */
#pragma GCC visibility push(default)
#define AQ_HOOK(library, symbol) void symbol(void);
#define AQ_GATE                  AQ_HOOK
#define AQ_USED(library, symbol)
#include "hooks.def"
#undef AQ_HOOK
#undef AQ_GATE
#undef AQ_USED
#pragma GCC visibility pop

#define ALIQUOT_DRIVER_API_H /* their types would contradict the declarations above */
#define ALIQUOT_NVML_API_H
#include "hooks.h"

#define AQ_HOOK(library, symbol) [AQ_ID_##symbol] = {#symbol, (void *)symbol, AQ_##library, AQ_KIND_HOOK},
#define AQ_GATE(library, symbol) [AQ_ID_##symbol] = {#symbol, (void *)symbol, AQ_##library, AQ_KIND_GATE},
#define AQ_USED(library, symbol) [AQ_ID_##symbol] = {#symbol, NULL, AQ_##library, AQ_KIND_USED},
const struct aq_entry aq_entries[AQ_COUNT] = {
#include "hooks.def"
};

void *aq_real_address[AQ_COUNT];

_Thread_local unsigned aq_depth;
