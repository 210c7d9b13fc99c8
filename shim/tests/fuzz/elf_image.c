/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: the dynamic symbol table of a loaded object that says anything of itself.
 *
 * Input: a count of program headers, the headers, the image. The headers' segments are cut to the image,
 * as ld.so maps nothing else.
 */
#include "elf_image.h"
#include "fuzz.h"

enum { MOST_HEADERS = 8 };

static void cut(ElfW(Phdr) * header, size_t size) {
  header->p_vaddr = header->p_vaddr > size ? size : header->p_vaddr;
  if (header->p_memsz > size - header->p_vaddr)
    header->p_memsz = size - header->p_vaddr;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[] = {"cuInit", "cuMemAlloc_v2", "nvmlInit_v2", ""};
  ElfW(Phdr) headers[MOST_HEADERS];
  struct aq_image image;
  size_t count = size ? 1 + data[0] % MOST_HEADERS : 0;
  size_t skipped = 1 + count * sizeof(headers[0]);
  if (size < skipped)
    return 0;
  memcpy(headers, data + 1, count * sizeof(headers[0]));
  uint8_t *mapped = aligned_copy(data + skipped, size - skipped);
  for (size_t i = 0; i < count; i++)
    cut(&headers[i], size - skipped);
  if (aq_image_read(&image, (uintptr_t)mapped, headers, count)) {
    aq_image_is(&image, "libcuda.so.1");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
      const ElfW(Sym) *found = aq_image_find(&image, names[i]);
      if (found && (uintptr_t)found < (uintptr_t)mapped)
        abort();
    }
  }
  free(mapped);
  return 0;
}
