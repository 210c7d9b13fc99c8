/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of fat binaries is not documented by NVIDIA; magic numbers and the
 * fields used here (header and payload sizes, kind, compression flag) are those
 * that `cuobjdump` output and public tools agree upon.
 */
#define _GNU_SOURCE
#include "image_parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define FAT_MAGIC      0xba55ed50U
#define FAT_WRAPPER    0x466243b1U
#define FAT_PTX        1
#define FAT_ELF        2
#define FAT_COMPRESSED 0xf000ULL /* LZ4 (0x2000) and what came later */

struct fat_header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_size;
  uint64_t size; /* of all that follows the header */
};

struct fat_entry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_size;
  uint64_t size;
  uint32_t compressed_size;
  uint32_t unknown[5];
  uint64_t flags;
};

struct fat_wrapper {
  uint32_t magic;
  uint32_t version;
  const void *data;
};

struct unit {
  const char *name;
  uint64_t size;
};

/* The first _NUMBER of the name with one of the units after it, times the unit. */
static bool named(const char *name, const struct unit *units, size_t count, uint64_t *value) {
  for (const char *at = strchr(name, '_'); at; at = strchr(at + 1, '_')) {
    char *end;
    if (!isdigit((unsigned char)at[1])) {
      continue;
    }
    unsigned long number = strtoul(at + 1, &end, 10);
    for (size_t i = 0; i < count; i++) {
      if (strncmp(end, units[i].name, strlen(units[i].name)) == 0 && number <= 100000000) {
        *value = number * units[i].size;
        return true;
      }
    }
  }
  return false;
}

static void read_name(struct image_kernel *kernel) {
  static const struct unit times[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}};
  static const struct unit sizes[] = {{"kib", 1U << 10}, {"mib", 1U << 20}};
  kernel->time = strstr(kernel->name, "_param_ns") ? IMAGE_BY_PARAMETER : IMAGE_BY_GRID;
  if (named(kernel->name, times, sizeof times / sizeof *times, &kernel->ns)) {
    kernel->time = IMAGE_BY_NAME;
  }
  named(kernel->name, sizes, sizeof sizes / sizeof *sizes, &kernel->more_bytes);
}

static int add(struct image *image, const char *name, size_t length) {
  struct image_kernel kernel = {.name = strndup(name, length)};
  if (!kernel.name) {
    return -1;
  }
  struct image_kernel *more = realloc(image->kernels, (image->count + 1) * sizeof *more);
  if (!more) {
    free(kernel.name);
    return -1;
  }
  read_name(&kernel);
  image->kernels = more;
  image->kernels[image->count] = kernel;
  return (int)image->count++;
}

static int find(const struct image *image, const char *name, size_t length) {
  for (unsigned i = 0; i < image->count; i++) {
    if (strlen(image->kernels[i].name) == length && memcmp(image->kernels[i].name, name, length) == 0) {
      return (int)i;
    }
  }
  return -1;
}

int image_find(struct image *image, const char *name) {
  int found = find(image, name, strlen(name));
  return found >= 0 || !image->any_name ? found : add(image, name, strlen(name));
}

static bool add_once(struct image *image, const char *name, size_t length) {
  return find(image, name, length) >= 0 || add(image, name, length) >= 0;
}

static bool read_ptx(const char *text, size_t size, struct image *image) {
  static const char entry[] = ".entry";
  const char *end = text + size;
  for (const char *at = text; (at = memmem(at, (size_t)(end - at), entry, sizeof entry - 1)) != NULL;) {
    at += sizeof entry - 1;
    while (at < end && isspace((unsigned char)*at)) {
      at++;
    }
    const char *name = at;
    while (at < end && (isalnum((unsigned char)*at) || *at == '_' || *at == '$' || *at == '%')) {
      at++;
    }
    if (at > name && !add_once(image, name, (size_t)(at - name))) {
      return false;
    }
  }
  return image_read_ptx_variables(text, size, image);
}

/* Sections called .text.NAME hold kernels. */
static bool read_elf(const char *file, struct image *image, size_t *size) {
  static const char prefix[] = ".text.";
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + header->e_shoff);
  *size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  if (header->e_shentsize != sizeof *sections || header->e_shstrndx >= header->e_shnum) {
    return true; /* without names nothing can be asked of it */
  }
  const char *names = file + sections[header->e_shstrndx].sh_offset;
  for (unsigned i = 0; i < header->e_shnum; i++) {
    const char *name = names + sections[i].sh_name;
    size_t end = sections[i].sh_offset + (sections[i].sh_type == SHT_NOBITS ? 0 : sections[i].sh_size);
    *size = end > *size ? end : *size;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0 &&
        !add_once(image, name + sizeof prefix - 1, strlen(name) - (sizeof prefix - 1))) {
      return false;
    }
    if (!image_read_symbols(file, sections, names, i, image)) {
      return false;
    }
  }
  return true;
}

static bool is_elf(const char *data) {
  return memcmp(data, ELFMAG, SELFMAG) == 0 && data[EI_CLASS] == ELFCLASS64;
}

static bool read_fat(const char *data, struct image *image) {
  struct fat_header header;
  memcpy(&header, data, sizeof header);
  image->bytes = header.header_size + header.size;
  for (const char *at = data + header.header_size; at + sizeof(struct fat_entry) <= data + image->bytes;) {
    struct fat_entry entry;
    size_t unused;
    memcpy(&entry, at, sizeof entry);
    const char *payload = at + entry.header_size;
    if (entry.header_size < sizeof entry || entry.size > (size_t)(data + image->bytes - payload)) {
      return true; /* no further */
    }
    if (entry.flags & FAT_COMPRESSED) {
      image->any_name = true;
    } else if (entry.kind == FAT_ELF && is_elf(payload) && !read_elf(payload, image, &unused)) {
      return false;
    } else if (entry.kind == FAT_PTX && !read_ptx(payload, strnlen(payload, entry.size), image)) {
      return false;
    }
    at = payload + entry.size;
  }
  return true;
}

static bool is_ptx(const char *text) {
  while (isspace((unsigned char)*text)) {
    text++;
  }
  return (*text == '/' || *text == '.') && strstr(text, ".version") != NULL;
}

enum image_error image_read(const void *data, struct image *image) {
  uint32_t magic;
  bool enough = true;
  *image = (struct image){0};
  memcpy(&magic, data, sizeof magic);
  if (magic == FAT_WRAPPER) {
    struct fat_wrapper wrapper;
    memcpy(&wrapper, data, sizeof wrapper);
    data = wrapper.data;
    memcpy(&magic, data, sizeof magic);
  }
  if (magic == FAT_MAGIC) {
    enough = read_fat(data, image);
  } else if (is_elf(data)) {
    enough = read_elf(data, image, &image->bytes);
  } else if (is_ptx(data)) {
    image->bytes = strlen(data);
    enough = read_ptx(data, image->bytes, image);
  } else {
    return IMAGE_INVALID;
  }
  if (!enough) {
    image_free(image);
    return IMAGE_NO_MEMORY;
  }
  return IMAGE_OK;
}

void image_free(struct image *image) {
  for (unsigned i = 0; i < image->count; i++) {
    free(image->kernels[i].name);
  }
  free(image->kernels);
  for (unsigned i = 0; i < image->variable_count; i++) {
    free(image->variables[i].name);
  }
  free(image->variables);
  *image = (struct image){0};
}
