/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of hooks.def, without an address in it: ld.so has nothing to do for it.
 */
#include "hooks.h"

#include <stddef.h>
#include <stdint.h>

#define AQ_GATE AQ_HOOK
#define AQ_USED AQ_HOOK

static const struct names {
#define AQ_HOOK(library, symbol) char symbol##_name[sizeof(#symbol)];
#include "hooks.def"
#undef AQ_HOOK
} names = {
#define AQ_HOOK(library, symbol) #symbol,
#include "hooks.def"
#undef AQ_HOOK
};

static const struct {
  uint16_t name;
  uint8_t library;
} entries[AQ_COUNT] = {
#define AQ_HOOK(library, symbol) {offsetof(struct names, symbol##_name), AQ_##library},
#include "hooks.def"
};

_Static_assert(sizeof(names) < UINT16_MAX, "offsets of names are 16 bits");

extern const int32_t aq_hook_offsets[AQ_COUNT]; /* entry.S */

struct aq_entry aq_entry(enum aq_id id) {
  int32_t offset = aq_hook_offsets[id];
  return (struct aq_entry){.name = (const char *)&names + entries[id].name,
                           .hook = offset ? (char *)(uintptr_t)aq_hook_offsets + offset : NULL,
                           .library = entries[id].library};
}

void *aq_real_address[AQ_COUNT];

_Thread_local unsigned aq_depth;
