/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzz targets share. Each is built twice: by clang with libFuzzer (make fuzz-shim), and with
 * replay.c by any compiler, to go through the kept corpus (make test-shim).
 */
#ifndef ALIQUOT_FUZZ_H
#define ALIQUOT_FUZZ_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* `size` bytes of their own, at a multiple of 16, with nothing behind them. */
static inline uint8_t *aligned_copy(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  if (!copy)
    abort();
  if (size)
    memcpy(copy, data, size);
  return copy;
}

#endif
