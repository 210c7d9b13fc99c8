/* SPDX-License-Identifier: Apache-2.0 */
#include "import.h"

#include <stdlib.h>

struct space_block *import_take(size_t size, struct import about) {
  struct import *import = malloc(sizeof *import);
  struct space_block *block = import ? space_take(size, false) : NULL;
  if (!block) {
    free(import);
    return NULL;
  }
  *import = about;
  block->kind = SPACE_IMPORT;
  block->owner = import;
  return block;
}

void import_give(struct space_block *block) {
  free(block->owner);
  space_give(block);
}
