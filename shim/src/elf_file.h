/* SPDX-License-Identifier: Apache-2.0
 *
 * An ELF file that is not loaded yet.
 */
#ifndef ALIQUOT_ELF_FILE_H
#define ALIQUOT_ELF_FILE_H

#include <stdbool.h>

/* True if the 64-bit ELF file at `path` names `soname` in its DT_NEEDED. Any other file, and
 * one that cannot be read, does not. Keeps errno. */
bool aq_file_needs(const char *path, const char *soname);

#endif
