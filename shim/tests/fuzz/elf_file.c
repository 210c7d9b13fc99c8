/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: DT_NEEDED of a file that holds anything.
 */

#include "elf_file.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *copy = aligned_copy(data, size);
  aq_elf_needs(copy, size, "libcuda.so.1");
  aq_elf_needs(copy, size, "");
  free(copy);
  return 0;
}
