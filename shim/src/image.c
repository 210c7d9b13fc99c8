/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver is told no size, so it reads it from the image, and so do we: an ELF file ends with
 * its section headers or its last segment, a fat binary says how long it is, PTX is a string.
 *
 * A fat binary holds code for several architectures, of which a GPU loads one. Its inside is not
 * documented by NVIDIA; cuobjdump lists the same entries. It counts as a whole.
 */
#include "image.h"

#include <elf.h>
#include <stdbool.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1U /* fatbinary_section.h of the CUDA toolkit */
#define FAT_MAGIC     0xba55ed50U

struct wrapper {
  uint32_t magic;
  uint32_t version;
  const void *data;
};

struct fat_header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;
};

static uint64_t elf_bytes(const void *image) {
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof(header));
  if (header.e_ident[EI_CLASS] != ELFCLASS64)
    return 0;
  uint64_t sections = header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize;
  uint64_t segments = header.e_phoff + (uint64_t)header.e_phnum * header.e_phentsize;
  return sections > segments ? sections : segments;
}

static bool begins_with(const void *image, const void *bytes, size_t count) {
  return memcmp(image, bytes, count) == 0;
}

uint64_t aq_image_bytes(const void *image) {
  uint32_t magic;
  if (!image)
    return 0;
  if (begins_with(image, ELFMAG, 1) && begins_with(image, ELFMAG, SELFMAG))
    return elf_bytes(image);
  if (*(const char *)image >= 0x09 && *(const char *)image < 0x7f &&
      memchr("\t\n\r /.", *(const char *)image, 6)) /* PTX: white space, a comment, or a directive */
    return strlen(image);
  if (*(const unsigned char *)image != 0xb1 && *(const unsigned char *)image != 0x50)
    return 0;
  memcpy(&magic, image, sizeof(magic));
  if (magic == WRAPPER_MAGIC) {
    struct wrapper wrapper;
    memcpy(&wrapper, image, sizeof(wrapper));
    return aq_image_bytes(wrapper.data);
  }
  if (magic != FAT_MAGIC)
    return 0;
  struct fat_header fat;
  memcpy(&fat, image, sizeof(fat));
  return fat.header_bytes + fat.bytes;
}
