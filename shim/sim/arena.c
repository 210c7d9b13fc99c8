/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "arena.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE  (2ULL << 20)
#define LOOKS 8 /* at free segments that may be just too small, before a larger class is taken */

static struct arena_segment *spare; /* segments for the next use, by next_free */

/* Four classes per power of two; a segment is in the highest class that is not above its size. */
static unsigned class_of(size_t size) {
  size_t grains = size / ARENA_GRAIN;
  if (grains < 4) {
    return (unsigned)grains;
  }
  unsigned power = 63U - (unsigned)__builtin_clzll(grains);
  return 4 * (power - 1) + (unsigned)(grains >> (power - 2) & 3);
}

static struct arena_segment *new_segment(void) {
  if (!spare) {
    struct arena_segment *fresh = calloc(256, sizeof *fresh);
    for (int i = 0; fresh && i < 256; i++) {
      fresh[i].next_free = spare;
      spare = &fresh[i];
    }
  }
  struct arena_segment *segment = spare;
  if (segment) {
    spare = segment->next_free;
    *segment = (struct arena_segment){0};
  }
  return segment;
}

static void forget_segment(struct arena_segment *segment) {
  segment->next_free = spare;
  spare = segment;
}

static void link_free(struct arena *arena, struct arena_segment *segment) {
  unsigned class = class_of(segment->size);
  segment->asked = 0;
  segment->previous_free = NULL;
  segment->next_free = arena->free[class];
  if (segment->next_free) {
    segment->next_free->previous_free = segment;
  }
  arena->free[class] = segment;
  arena->filled[class / 64] |= 1ULL << class % 64;
}

static void unlink_free(struct arena *arena, struct arena_segment *segment) {
  unsigned class = class_of(segment->size);
  if (segment->next_free) {
    segment->next_free->previous_free = segment->previous_free;
  }
  if (segment->previous_free) {
    segment->previous_free->next_free = segment->next_free;
  } else {
    arena->free[class] = segment->next_free;
  }
  if (!arena->free[class]) {
    arena->filled[class / 64] &= ~(1ULL << class % 64);
  }
}

static struct arena_segment *first_above(const struct arena *arena, unsigned class) {
  for (unsigned word = class / 64; word < ARENA_CLASSES / 64; word++) {
    uint64_t bits = arena->filled[word];
    if (word == class / 64) {
      bits &= ~0ULL << class % 64;
    }
    if (bits) {
      return arena->free[word * 64 + (unsigned)__builtin_ctzll(bits)];
    }
  }
  return NULL;
}

static struct arena_segment *find_free(const struct arena *arena, size_t size) {
  unsigned class = class_of(size);
  struct arena_segment *segment = arena->free[class];
  for (int look = 0; segment && look < LOOKS; look++, segment = segment->next_free) {
    if (segment->size >= size) {
      return segment;
    }
  }
  return first_above(arena, class + 1);
}

/* Let addresses lead to the segment, or (NULL) no longer. */
static void index_segment(const struct arena_segment *segment, struct arena_segment *value) {
  const struct arena_chunk *chunk = segment->chunk;
  size_t offset = segment->address - chunk->block->address;
  chunk->at[offset / ARENA_GRAIN] = value;
  for (size_t page = offset / PAGE + 1; page * PAGE < offset + segment->size; page++) {
    chunk->across[page] = value;
  }
}

static bool is_idle(const struct arena_chunk *chunk) {
  return !chunk->first->asked && !chunk->first->after;
}

/* Cut the end of a free segment off, if there is any. False: no host memory. */
static bool split(struct arena *arena, struct arena_segment *segment, size_t size) {
  if (segment->size == size) {
    return true;
  }
  struct arena_segment *rest = new_segment();
  if (!rest) {
    return false;
  }
  rest->address = segment->address + size;
  rest->size = segment->size - size;
  rest->chunk = segment->chunk;
  rest->before = segment;
  rest->after = segment->after;
  if (rest->after) {
    rest->after->before = rest;
  }
  segment->after = rest;
  segment->size = size;
  link_free(arena, rest);
  return true;
}

struct arena_segment *arena_take(struct arena *arena, size_t size) {
  size_t rounded = (size + ARENA_GRAIN - 1) & ~(ARENA_GRAIN - 1);
  struct arena_segment *segment = find_free(arena, rounded);
  if (!segment) {
    return NULL;
  }
  struct arena_chunk *chunk = segment->chunk;
  bool was_idle = is_idle(chunk);
  unlink_free(arena, segment);
  if (!split(arena, segment, rounded)) {
    link_free(arena, segment);
    return NULL;
  }
  segment->asked = size;
  segment->id = space_new_id();
  arena->used += rounded;
  arena->idle -= was_idle ? chunk->size : 0;
  index_segment(segment, segment);
  return segment;
}

/* Append the right one to the left one. Neither is in a list. */
static void merge(struct arena_segment *left, struct arena_segment *right) {
  left->size += right->size;
  left->after = right->after;
  if (left->after) {
    left->after->before = left;
  }
  forget_segment(right);
}

void arena_give(struct arena_segment *segment) {
  struct arena_chunk *chunk = segment->chunk;
  struct arena *arena = chunk->arena;
  index_segment(segment, NULL);
  space_drop_part(segment->address, segment->size, arena->host, &segment->backing);
  arena->used -= segment->size;
  segment->asked = 0;
  if (segment->after && !segment->after->asked) {
    unlink_free(arena, segment->after);
    merge(segment, segment->after);
  }
  if (segment->before && !segment->before->asked) {
    struct arena_segment *left = segment->before;
    unlink_free(arena, left);
    merge(left, segment);
    segment = left;
  }
  link_free(arena, segment);
  arena->idle += is_idle(chunk) ? chunk->size : 0;
}

struct arena_segment *arena_find(const struct arena_chunk *chunk, uintptr_t address, bool around) {
  size_t offset = address - chunk->block->address;
  size_t grain = offset / ARENA_GRAIN;
  struct arena_segment *segment = chunk->at[grain];
  if (!around) {
    return segment && segment->address == address ? segment : NULL;
  }
  for (size_t first = offset / PAGE * (PAGE / ARENA_GRAIN); !segment && grain > first;) {
    segment = chunk->at[--grain];
  }
  segment = segment ? segment : chunk->across[offset / PAGE];
  return segment && address - segment->address < segment->asked ? segment : NULL;
}

static size_t index_size(size_t chunk_size) {
  return (chunk_size / ARENA_GRAIN + chunk_size / PAGE) * sizeof(struct arena_segment *);
}

bool arena_grow(struct arena *arena, size_t size) {
  struct arena_chunk *chunk = calloc(1, sizeof *chunk);
  struct arena_segment *whole = chunk ? new_segment() : NULL;
  void *index = whole ? mmap(NULL, index_size(size), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                      : MAP_FAILED;
  struct space_block *block = index != MAP_FAILED ? space_take(size, false) : NULL;
  if (!block) {
    if (index != MAP_FAILED) {
      munmap(index, index_size(size));
    }
    if (whole) {
      forget_segment(whole);
    }
    free(chunk);
    return false;
  }
  block->kind = SPACE_CHUNK;
  block->owner = chunk;
  whole->address = block->address;
  whole->size = size;
  whole->chunk = chunk;
  *chunk = (struct arena_chunk){
      .arena = arena, .block = block, .size = size, .first = whole, .at = index, .next = arena->chunks};
  chunk->across = chunk->at + size / ARENA_GRAIN;
  if (chunk->next) {
    chunk->next->previous = chunk;
  }
  arena->chunks = chunk;
  arena->reserved += size;
  arena->idle += size;
  link_free(arena, whole);
  return true;
}

static void remove_chunk(struct arena *arena, struct arena_chunk *chunk) {
  if (arena->removing) {
    arena->removing(chunk);
  }
  unlink_free(arena, chunk->first);
  forget_segment(chunk->first);
  if (chunk->next) {
    chunk->next->previous = chunk->previous;
  }
  *(chunk->previous ? &chunk->previous->next : &arena->chunks) = chunk->next;
  arena->reserved -= chunk->size;
  arena->idle -= chunk->size;
  munmap(chunk->at, index_size(chunk->size));
  space_give(chunk->block);
  free(chunk);
}

size_t arena_shrink(struct arena *arena, size_t keep) {
  size_t gone = 0;
  struct arena_chunk *next;
  for (struct arena_chunk *chunk = arena->chunks; chunk && arena->idle > 0; chunk = next) {
    next = chunk->next;
    if (is_idle(chunk) && arena->reserved - chunk->size >= keep) {
      gone += chunk->size;
      remove_chunk(arena, chunk);
    }
  }
  return gone;
}
