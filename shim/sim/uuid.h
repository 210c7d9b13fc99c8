/* SPDX-License-Identifier: Apache-2.0
 *
 * UUIDs that follow from names.
 */
#ifndef SIM_UUID_H
#define SIM_UUID_H

#include <stdint.h>

#define SIM_UUID_TEXT 41 /* "GPU-" + 36 characters + terminator */

/* The same name and number give the same UUID, in form of that version of RFC 9562. */
void uuid_make(const char *name, uint64_t number, unsigned version, uint8_t uuid[16]);

/* `prefix`: "GPU-", "MIG-". */
void uuid_text(const char *prefix, const uint8_t uuid[16], char text[SIM_UUID_TEXT]);

#endif
