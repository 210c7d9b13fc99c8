/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target once for each file named: no fuzzer needed.
 */
#include <stdio.h>

#include "fuzz.h"

enum { LARGEST = 1 << 20 };

int main(int argc, char **argv) {
  uint8_t *data = malloc(LARGEST);
  for (int i = 1; data && i < argc; i++) {
    FILE *file = fopen(argv[i], "rb");
    if (!file) {
      perror(argv[i]);
      return 1;
    }
    size_t size = fread(data, 1, LARGEST, file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
  }
  free(data);
  return data ? 0 : 1;
}
