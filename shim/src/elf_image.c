/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and redirects the dynamic symbol table of a loaded object.
 *
 * The table lies in a read-only segment outside RELRO. ld.so, and whoever reads the table by
 * hand, adds the load address to st_value: st_value = target - base leads both to our hook.
 * Names, hashes and versions stay, so that DT_GNU_HASH and .gnu.version remain valid.
 */
#include "elf_image.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* True if `length` bytes at `from` are mapped by one segment: what an object says of itself is not
 * believed. */
static bool holds(const struct aq_image *image, const void *from, size_t length) {
  uintptr_t offset = (uintptr_t)from - image->base;
  for (size_t i = 0; i < image->phdr_count; i++) {
    const ElfW(Phdr) *segment = &image->phdr[i];
    if (segment->p_type == PT_LOAD && offset >= segment->p_vaddr &&
        offset - segment->p_vaddr <= segment->p_memsz &&
        length <= segment->p_memsz - (offset - segment->p_vaddr))
      return true;
  }
  return false;
}

/* Element `index` of an array that begins at `array`; NULL if it is not mapped or not aligned. */
static const void *element(const struct aq_image *image, const void *array, uint64_t index, size_t size) {
  uintptr_t address = (uintptr_t)array + index * size;
  size_t alignment = size < sizeof(uint64_t) ? sizeof(uint32_t) : sizeof(uint64_t);
  if (index >= 2 * (uint64_t)UINT32_MAX || address % alignment != 0)
    return NULL;
  return holds(image, (const void *)address, size) ? (const void *)address : NULL;
}

static bool string_is(const struct aq_image *image, uint64_t offset, const char *text) {
  const char *string = (const char *)((uintptr_t)image->strings + offset);
  return offset < UINT32_MAX && holds(image, string, strlen(text) + 1) && strcmp(string, text) == 0;
}

/* glibc relocates d_ptr in place on most architectures, but not on all. */
static const void *loaded(uintptr_t base, ElfW(Addr) address) {
  return (const void *)(address < base ? base + address : address);
}

/* The dynamic section, and how many entries it has room for. */
static const ElfW(Dyn) * dynamic_of(const struct aq_image *image, size_t *count) {
  for (size_t i = 0; i < image->phdr_count; i++) {
    const ElfW(Phdr) *segment = &image->phdr[i];
    const void *entries = (const void *)(image->base + segment->p_vaddr);
    *count = segment->p_memsz / sizeof(ElfW(Dyn));
    if (segment->p_type == PT_DYNAMIC)
      return element(image, entries, 0, *count * sizeof(ElfW(Dyn)));
  }
  return NULL;
}

bool aq_image_read(struct aq_image *image, uintptr_t base, const ElfW(Phdr) * phdr, size_t phdr_count) {
  size_t count = 0;
  *image = (struct aq_image){.base = base, .phdr = phdr, .phdr_count = phdr_count, .soname = UINT64_MAX};
  const ElfW(Dyn) *entry = dynamic_of(image, &count);
  for (; entry && count > 0 && entry->d_tag != DT_NULL; entry++, count--) {
    switch (entry->d_tag) {
    case DT_SYMTAB:
      image->symbols = loaded(base, entry->d_un.d_ptr);
      break;
    case DT_STRTAB:
      image->strings = loaded(base, entry->d_un.d_ptr);
      break;
    case DT_GNU_HASH:
      image->gnu_hash = loaded(base, entry->d_un.d_ptr);
      break;
    case DT_HASH:
      image->hash = loaded(base, entry->d_un.d_ptr);
      break;
    case DT_SONAME:
      image->soname = entry->d_un.d_val;
      break;
    default:
      break;
    }
  }
  return image->symbols && image->strings;
}

bool aq_image_is(const struct aq_image *image, const char *soname) {
  return string_is(image, image->soname, soname);
}

bool aq_image_of_map(struct aq_image *image, const struct link_map *map) {
  const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)map->l_addr;
  if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
    return false;
  const void *phdr = (const char *)header + header->e_phoff;
  return aq_image_read(image, map->l_addr, phdr, header->e_phnum);
}

static ElfW(Sym) * usable(const struct aq_image *image, uint32_t index, const char *name) {
  const ElfW(Sym) *symbol = element(image, image->symbols, index, sizeof(*symbol));
  if (!symbol || symbol->st_shndx == SHN_UNDEF)
    return NULL;
  unsigned type = ELF64_ST_TYPE(symbol->st_info);
  if (type == STT_GNU_IFUNC || type == STT_TLS || !string_is(image, symbol->st_name, name))
    return NULL;
  return (ElfW(Sym) *)symbol;
}

/* Word `index` of a table; false if it is not mapped. */
static bool word_at(const struct aq_image *image, const uint32_t *table, uint64_t index, uint32_t *word) {
  const uint32_t *at = element(image, table, index, sizeof(*at));
  if (at)
    *word = *at;
  return at != NULL;
}

static ElfW(Sym) * find_gnu(const struct aq_image *image, const char *name) {
  const uint32_t *table = image->gnu_hash;
  uint32_t buckets;
  uint32_t first;
  uint32_t bloom_words;
  uint32_t index;
  uint32_t word;
  if (!word_at(image, table, 0, &buckets) || !word_at(image, table, 1, &first) ||
      !word_at(image, table, 2, &bloom_words) || buckets == 0)
    return NULL;
  uint64_t bucket = 4 + (uint64_t)bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  uint64_t chain = bucket + buckets;
  uint32_t hash = 5381;
  for (const unsigned char *c = (const unsigned char *)name; *c; c++)
    hash = hash * 33 + *c;
  if (!word_at(image, table, bucket + hash % buckets, &index) || index < first)
    return NULL;
  for (; word_at(image, table, chain + (index - first), &word); index++) {
    if ((word | 1) == (hash | 1)) {
      ElfW(Sym) *symbol = usable(image, index, name);
      if (symbol)
        return symbol;
    }
    if (word & 1)
      break;
  }
  return NULL;
}

static ElfW(Sym) * find_sysv(const struct aq_image *image, const char *name) {
  const uint32_t *table = image->hash;
  uint32_t buckets;
  uint32_t left; /* a chain is no longer than this, or it bites its tail */
  uint32_t index;
  uint32_t hash = 0;
  for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
    hash = (hash << 4) + *c;
    hash ^= (hash >> 24) & 0xf0;
    hash &= 0x0fffffff;
  }
  if (!word_at(image, table, 0, &buckets) || !word_at(image, table, 1, &left) || buckets == 0)
    return NULL;
  uint64_t chain = 2 + (uint64_t)buckets;
  if (left == 0 || !element(image, table, chain + left - 1, sizeof(*table)))
    return NULL;
  bool more = word_at(image, table, 2 + hash % buckets, &index);
  for (; more && index != 0 && left > 0; left--) {
    ElfW(Sym) *symbol = usable(image, index, name);
    if (symbol)
      return symbol;
    more = word_at(image, table, chain + index, &index);
  }
  return NULL;
}

ElfW(Sym) * aq_image_find(const struct aq_image *image, const char *name) {
  if (image->gnu_hash)
    return find_gnu(image, name);
  return image->hash ? find_sysv(image, name) : NULL;
}

static bool read_only(const struct aq_image *image, uintptr_t from, uintptr_t to) {
  for (size_t i = 0; i < image->phdr_count; i++) {
    const ElfW(Phdr) *segment = &image->phdr[i];
    uintptr_t start = image->base + segment->p_vaddr;
    if (segment->p_type == PT_LOAD && from >= start && to <= start + segment->p_memsz)
      return segment->p_flags == PF_R;
  }
  return false;
}

bool aq_image_redirect(const struct aq_image *image, const struct aq_redirect *redirects, size_t count) {
  uintptr_t from = UINTPTR_MAX;
  uintptr_t to = 0;
  for (size_t i = 0; i < count; i++) {
    uintptr_t address = (uintptr_t)redirects[i].symbol;
    from = address < from ? address : from;
    to = address + sizeof(ElfW(Sym)) > to ? address + sizeof(ElfW(Sym)) : to;
  }
  if (count == 0)
    return true;
  if (!read_only(image, from, to))
    return false;
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  from &= ~(page - 1);
  to = (to + page - 1) & ~(page - 1);
  if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE) != 0)
    return false;
  for (size_t i = 0; i < count; i++)
    __atomic_store_n(&redirects[i].symbol->st_value, (uintptr_t)redirects[i].target - image->base,
                     __ATOMIC_RELEASE);
  mprotect((void *)from, to - from, PROT_READ);
  return true;
}
