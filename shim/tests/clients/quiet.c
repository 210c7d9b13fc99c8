/* SPDX-License-Identifier: Apache-2.0
 *
 * A program without CUDA that counts allocations: prints the number of calls of malloc and
 * its kin up to here, by anyone in the process.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static unsigned long calls;
static char arena[1 << 20] __attribute__((aligned(16)));
static size_t used;

void *malloc(size_t size) {
  calls++;
  size_t at = (used + 31) & ~(size_t)15; /* the size stands before the block */
  if (at + size > sizeof(arena))
    return NULL;
  *(size_t *)(void *)(arena + at - 16) = size;
  used = at + size;
  return arena + at;
}

void free(void *block) {
  (void)block;
}

void *calloc(size_t count, size_t size) {
  return malloc(count * size); /* the arena is zero, and nothing is used twice */
}

void *realloc(void *block, size_t size) {
  void *fresh = malloc(size);
  if (fresh && block) {
    size_t old = *(size_t *)(void *)((char *)block - 16);
    memcpy(fresh, block, old < size ? old : size);
  }
  return fresh;
}

int main(void) {
  char text[32];
  int length = snprintf(text, sizeof(text), "%lu\n", calls);
  return write(1, text, (size_t)length) == length ? 0 : 1;
}
