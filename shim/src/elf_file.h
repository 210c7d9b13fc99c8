/* SPDX-License-Identifier: Apache-2.0
 *
 * An ELF file that is not loaded yet.
 */
#ifndef ALIQUOT_ELF_FILE_H
#define ALIQUOT_ELF_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* True if the 64-bit ELF file at `path` names `soname` in its DT_NEEDED. Any other file, and
 * one that cannot be read, does not. Keeps errno. */
bool aq_file_needs(const char *path, const char *soname);

/* The same for a file in memory, which begins at a multiple of 8 and may hold anything. */
bool aq_elf_needs(const void *data, size_t size, const char *soname);

#endif
