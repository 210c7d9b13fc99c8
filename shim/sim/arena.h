/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pool allocates from: chunks of addresses, cut into segments. A chunk
 * comes and goes as a whole; the caller charges and refunds its size.
 *
 * Take and give cost the same however many segments there are. A request can
 * fail although the free bytes would suffice in sum: fragmentation is real.
 * Not thread safe.
 */
#ifndef SIM_ARENA_H
#define SIM_ARENA_H

#include "space.h"

#define ARENA_GRAIN 512ULL /* segments are multiples of this */

#define ARENA_CLASSES 192

struct managed;

struct arena_segment {
  uintptr_t address;
  size_t size;  /* whole grains */
  size_t asked; /* as the program asked for; 0 = free */
  uint64_t id;  /* of the allocation, as in space.h */
  struct arena_chunk *chunk;
  struct arena_segment *before, *after;            /* neighbours in the chunk */
  struct arena_segment *previous_free, *next_free; /* in the list of its class */
  enum space_backing backing;
};

struct arena_chunk {
  struct arena *arena;
  struct space_block *block; /* kind SPACE_CHUNK, owner = this */
  size_t size;
  struct arena_segment *first;
  struct arena_segment **at;     /* by grain: the taken segment that starts there */
  struct arena_segment **across; /* by page: the taken segment that lies across the page's beginning */
  struct managed *managed;       /* of a managed pool, which keeps it */
  struct arena_chunk *previous, *next;
};

struct arena {
  void *owner;
  bool host;                                   /* the host may use what lies in it */
  void (*removing)(struct arena_chunk *chunk); /* called before a chunk goes; may be NULL */
  size_t reserved;                             /* bytes of all chunks */
  size_t used;                                 /* bytes of all taken segments */
  size_t idle;                                 /* bytes of chunks without any */
  struct arena_chunk *chunks;
  struct arena_segment *free[ARENA_CLASSES];
  uint64_t filled[ARENA_CLASSES / 64]; /* classes with a free segment */
};

/* A segment of what is there; NULL: nothing fits. */
struct arena_segment *arena_take(struct arena *arena, size_t size);

/* Add a chunk of whole pages (2 MiB). False: no addresses. */
bool arena_grow(struct arena *arena, size_t size);

void arena_give(struct arena_segment *segment);

/* The taken segment that starts at an address inside a chunk, or (`around`) that lies around it; NULL: none.
 */
struct arena_segment *arena_find(const struct arena_chunk *chunk, uintptr_t address, bool around);

/* Remove idle chunks as long as `keep` bytes stay reserved; returns how many bytes went. */
size_t arena_shrink(struct arena *arena, size_t keep);

#endif
