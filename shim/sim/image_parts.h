/* SPDX-License-Identifier: Apache-2.0
 *
 * What the readers of images share.
 */
#ifndef SIM_IMAGE_PARTS_H
#define SIM_IMAGE_PARTS_H

#include <elf.h>

#include "image.h"

#define IMAGE_LARGEST_VARIABLE (1ULL << 40)

/* Adds what is not there yet. False: no memory. */
bool image_add_variable(struct image *image, const char *name, size_t length, uint64_t size);

/* Variables that PTX declares, and those that a section of symbols names. False: no memory. */
bool image_read_ptx_variables(const char *text, size_t size, struct image *image);
bool image_read_symbols(const char *file, const Elf64_Shdr *sections, const char *names, unsigned index,
                        struct image *image);

#endif
