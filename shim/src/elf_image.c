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

/* glibc relocates d_ptr in place on most architectures, but not on all. */
static const void *loaded(uintptr_t base, ElfW(Addr) address) {
  return (const void *)(address < base ? base + address : address);
}

static const ElfW(Dyn) * dynamic_of(const struct aq_image *image) {
  for (size_t i = 0; i < image->phdr_count; i++)
    if (image->phdr[i].p_type == PT_DYNAMIC)
      return (const ElfW(Dyn) *)(image->base + image->phdr[i].p_vaddr);
  return NULL;
}

bool aq_image_read(struct aq_image *image, uintptr_t base, const ElfW(Phdr) * phdr, size_t phdr_count) {
  *image = (struct aq_image){.base = base, .phdr = phdr, .phdr_count = phdr_count};
  const ElfW(Dyn) *entry = dynamic_of(image);
  if (!entry)
    return false;
  bool named = false;
  size_t soname = 0;
  for (; entry->d_tag != DT_NULL; entry++) {
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
      soname = entry->d_un.d_val;
      named = true;
      break;
    default:
      break;
    }
  }
  if (!image->symbols || !image->strings)
    return false;
  image->soname = named ? image->strings + soname : NULL;
  return true;
}

bool aq_image_of_map(struct aq_image *image, const struct link_map *map) {
  const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)map->l_addr;
  if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
    return false;
  const void *phdr = (const char *)header + header->e_phoff;
  return aq_image_read(image, map->l_addr, phdr, header->e_phnum);
}

static ElfW(Sym) * usable(const struct aq_image *image, uint32_t index, const char *name) {
  const ElfW(Sym) *symbol = &image->symbols[index];
  unsigned type = ELF64_ST_TYPE(symbol->st_info);
  if (symbol->st_shndx == SHN_UNDEF || type == STT_GNU_IFUNC || type == STT_TLS)
    return NULL;
  if (strcmp(image->strings + symbol->st_name, name) != 0)
    return NULL;
  return (ElfW(Sym) *)symbol;
}

static ElfW(Sym) * find_gnu(const struct aq_image *image, const char *name) {
  const uint32_t *table = image->gnu_hash;
  uint32_t buckets = table[0];
  uint32_t first = table[1];
  uint32_t bloom_words = table[2];
  const ElfW(Addr) *bloom = (const ElfW(Addr) *)(table + 4);
  const uint32_t *bucket = (const uint32_t *)(bloom + bloom_words);
  const uint32_t *chain = bucket + buckets;
  uint32_t hash = 5381;
  for (const unsigned char *c = (const unsigned char *)name; *c; c++)
    hash = hash * 33 + *c;
  if (buckets == 0 || bucket[hash % buckets] < first)
    return NULL;
  for (uint32_t index = bucket[hash % buckets];; index++) {
    uint32_t word = chain[index - first];
    if ((word | 1) == (hash | 1)) {
      ElfW(Sym) *symbol = usable(image, index, name);
      if (symbol)
        return symbol;
    }
    if (word & 1)
      return NULL;
  }
}

static ElfW(Sym) * find_sysv(const struct aq_image *image, const char *name) {
  uint32_t buckets = image->hash[0];
  const uint32_t *bucket = image->hash + 2;
  const uint32_t *chain = bucket + buckets;
  uint32_t hash = 0;
  for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
    hash = (hash << 4) + *c;
    hash ^= (hash >> 24) & 0xf0;
    hash &= 0x0fffffff;
  }
  if (buckets == 0)
    return NULL;
  for (uint32_t index = bucket[hash % buckets]; index != 0; index = chain[index]) {
    ElfW(Sym) *symbol = usable(image, index, name);
    if (symbol)
      return symbol;
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
