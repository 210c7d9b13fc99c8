/* SPDX-License-Identifier: Apache-2.0
 *
 * A loaded ELF object's dynamic symbol table: reading it and redirecting entries of it.
 */
#ifndef ALIQUOT_ELF_IMAGE_H
#define ALIQUOT_ELF_IMAGE_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aq_image {
  uintptr_t base;
  const ElfW(Phdr) * phdr;
  size_t phdr_count;
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *gnu_hash; /* NULL if absent */
  const uint32_t *hash;     /* NULL if absent */
  uint64_t soname;          /* offset in `strings`; UINT64_MAX if absent */
};

struct aq_redirect {
  ElfW(Sym) * symbol;
  const void *target;
};

/* Reads the dynamic section of the object at `base`. False: nothing that we can use. */
bool aq_image_read(struct aq_image *image, uintptr_t base, const ElfW(Phdr) * phdr, size_t phdr_count);

/* The same for an object of which only the link map is known (another namespace). */
bool aq_image_of_map(struct aq_image *image, const struct link_map *map);

/* True if this is the object's DT_SONAME. */
bool aq_image_is(const struct aq_image *image, const char *soname);

/* The defined, ordinary symbol `name`; NULL if there is none. */
ElfW(Sym) * aq_image_find(const struct aq_image *image, const char *name);

static inline uintptr_t aq_image_address(const struct aq_image *image, const ElfW(Sym) * symbol) {
  return image->base + symbol->st_value;
}

/* Points each symbol at its target, all or none. Readers see the old or the new value.
 * False when the table does not lie in a purely read-only segment: a page that may hold
 * code is left alone. */
bool aq_image_redirect(const struct aq_image *image, const struct aq_redirect *redirects, size_t count);

#endif
