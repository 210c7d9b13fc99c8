/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads DT_NEEDED of a file before it is loaded; each offset is checked against its size.
 */
#include "elf_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
  const char *data;
  size_t size;
};

static const void *at(const struct file *file, uint64_t offset, uint64_t length) {
  if (offset > file->size || length > file->size - offset || offset % sizeof(uint64_t) != 0)
    return NULL;
  return file->data + offset;
}

/* File offset of a virtual address, or UINT64_MAX. */
static uint64_t offset_of(const ElfW(Phdr) * phdr, size_t count, uint64_t address) {
  for (size_t i = 0; i < count; i++)
    if (phdr[i].p_type == PT_LOAD && address >= phdr[i].p_vaddr &&
        address - phdr[i].p_vaddr < phdr[i].p_filesz)
      return phdr[i].p_offset + (address - phdr[i].p_vaddr);
  return UINT64_MAX;
}

static bool string_is(const struct file *file, uint64_t offset, const char *text) {
  size_t length = strlen(text) + 1;
  return offset <= file->size && length <= file->size - offset &&
         memcmp(file->data + offset, text, length) == 0;
}

static bool dynamic_needs(const struct file *file, const ElfW(Phdr) * phdr, size_t phdr_count,
                          const ElfW(Dyn) * entries, size_t count, const char *soname) {
  uint64_t strings = UINT64_MAX;
  for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++)
    if (entries[i].d_tag == DT_STRTAB)
      strings = offset_of(phdr, phdr_count, entries[i].d_un.d_ptr);
  if (strings >= file->size)
    return false;
  for (size_t i = 0; i < count && entries[i].d_tag != DT_NULL; i++)
    if (entries[i].d_tag == DT_NEEDED && entries[i].d_un.d_val < file->size &&
        string_is(file, strings + entries[i].d_un.d_val, soname))
      return true;
  return false;
}

bool aq_elf_needs(const void *data, size_t size, const char *soname) {
  const struct file whole = {data, size};
  const struct file *file = &whole;
  const ElfW(Ehdr) *header = at(file, 0, sizeof(*header));
  if (!header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
    return false;
  size_t count = header->e_phnum;
  const ElfW(Phdr) *phdr = at(file, header->e_phoff, count * sizeof(*phdr));
  if (!phdr)
    return false;
  for (size_t i = 0; i < count; i++) {
    if (phdr[i].p_type != PT_DYNAMIC)
      continue;
    const ElfW(Dyn) *entries = at(file, phdr[i].p_offset, phdr[i].p_filesz);
    if (entries)
      return dynamic_needs(file, phdr, count, entries, phdr[i].p_filesz / sizeof(*entries), soname);
  }
  return false;
}

bool aq_file_needs(const char *path, const char *soname) {
  int saved = errno;
  bool needs = false;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status;
  if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    size_t size = (size_t)status.st_size;
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data != MAP_FAILED) {
      needs = aq_elf_needs(data, size, soname);
      munmap(data, size);
    }
  }
  if (fd >= 0)
    close(fd);
  errno = saved;
  return needs;
}
