/* SPDX-License-Identifier: Apache-2.0
 *
 * From a driver function's address to our hook.
 */
#ifndef ALIQUOT_HOOK_MAP_H
#define ALIQUOT_HOOK_MAP_H

/* Under driver.c's lock. Readers (aq_hook_of, aq_base_is_hooked) need none. */
void aq_hook_map_add(const void *address, void *hook);

#endif
