/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "space.h"

#include <sys/mman.h>

#define PAGE          (2ULL << 20)
#define HOST_PAGE     4096ULL
#define SMALLEST      512ULL /* also the alignment of all blocks */
#define ADDRESS_BITS  48
#define LARGEST       (1ULL << 42)
#define CLASSES       (4 * 43)
#define ARENA         (64ULL << 30)
#define META          (1ULL << 20)
#define BACKING_LIMIT (64ULL << 20) /* host memory that one process may use as device memory */
#define LEAF_BITS     13

/* Blocks of one size at one place: one page full of small ones, or one large one. */
struct span {
  uintptr_t base;
  size_t stride;
  size_t count;
  struct span *next;
  struct space_block blocks[];
};

struct range {
  uintptr_t next, end;
};

/* Blocks below 4 GiB are another kind: they must not be given to callers who do not need them. */
static struct space_block *free_blocks[2][CLASSES];
static struct range arena[2];
static struct range meta;
static struct span *spans;
static struct span **pages[1U << (ADDRESS_BITS - 21 - LEAF_BITS)];
static size_t backed;

static void *reserve(void *where, size_t size, int protection, int flags) {
  void *map = mmap(where, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return map == MAP_FAILED ? NULL : map;
}

/* Memory for our own records: zeroed, never given back. */
static void *record(size_t size) {
  size = (size + 15) & ~(size_t)15;
  if (meta.end - meta.next < size) {
    size_t fresh = size > META ? size : META;
    void *map = reserve(NULL, fresh, PROT_READ | PROT_WRITE, 0);
    if (!map) {
      return NULL;
    }
    meta = (struct range){(uintptr_t)map, (uintptr_t)map + fresh};
  }
  void *result = (void *)meta.next;
  meta.next += size;
  return result;
}

static unsigned class_of(size_t size, size_t *stride) {
  if (size <= SMALLEST) {
    *stride = SMALLEST;
    return 0;
  }
  size = (size + SMALLEST - 1) & ~(SMALLEST - 1);
  unsigned power = 63U - (unsigned)__builtin_clzll(size - 1); /* 2^power < size <= 2^(power + 1) */
  size_t quarter = (size_t)1 << (power - 2);
  size_t quarters = (size - 1) / quarter + 1; /* 5 .. 8 */
  *stride = quarters * quarter;
  return 4 * power + (unsigned)quarters - 4 * 9 - 4;
}

static bool refill(struct range *range, size_t size, bool low) {
  if (!low) {
    size_t fresh = (size > ARENA ? size : ARENA) + PAGE;
    void *map = reserve(NULL, fresh, PROT_NONE, 0);
    map = map ? map : reserve(NULL, fresh = size + PAGE, PROT_NONE, 0); /* a limit on address space */
    *range = map ? (struct range){(uintptr_t)map, (uintptr_t)map + fresh} : *range;
    return map;
  }
  for (uintptr_t where = 1ULL << 30; where < 4ULL << 30; where += 1ULL << 28) {
    size_t fresh = size > (1ULL << 28) ? size + PAGE : 1ULL << 28;
    if (where + fresh <= 4ULL << 30 && reserve((void *)where, fresh, PROT_NONE, MAP_FIXED_NOREPLACE)) {
      *range = (struct range){where, where + fresh};
      return true;
    }
  }
  return false;
}

static uintptr_t addresses(size_t size, bool low) {
  struct range *range = &arena[low];
  for (int attempt = 0; attempt < 2; attempt++) {
    uintptr_t start = (range->next + PAGE - 1) & ~(PAGE - 1);
    if (range->next && start + size <= range->end) {
      range->next = start + size;
      return start;
    }
    if (!refill(range, size, low)) {
      break;
    }
  }
  return 0;
}

static bool index_pages(struct span *span, size_t size) {
  for (uintptr_t page = span->base / PAGE; page <= (span->base + size - 1) / PAGE; page++) {
    struct span ***leaf = &pages[page >> LEAF_BITS];
    if (!*leaf) {
      *leaf = record(sizeof **leaf << LEAF_BITS);
    }
    if (!*leaf) {
      return false;
    }
    (*leaf)[page & ((1U << LEAF_BITS) - 1)] = span;
  }
  return true;
}

/* Make fresh blocks of a size and put them on the free list. */
static bool grow(size_t stride, bool low, struct space_block **list) {
  size_t count = stride < PAGE ? PAGE / stride : 1;
  size_t size = stride < PAGE ? PAGE : stride;
  struct span *span = record(sizeof *span + count * sizeof *span->blocks);
  if (!span || !(span->base = addresses(size, low)) || !index_pages(span, size)) {
    return false;
  }
  span->stride = stride;
  span->count = count;
  span->next = spans;
  spans = span;
  for (size_t i = count; i-- > 0;) {
    span->blocks[i].address = span->base + i * stride;
    span->blocks[i].next = *list;
    *list = &span->blocks[i];
  }
  return true;
}

uint64_t space_new_id(void) {
  static uint64_t last;
  return ++last;
}

struct space_block *space_take(size_t size, bool low) {
  size_t stride;
  if (size == 0 || size > LARGEST) {
    return NULL;
  }
  struct space_block **list = &free_blocks[low][class_of(size, &stride)];
  if (!*list && !grow(stride, low, list)) {
    return NULL;
  }
  struct space_block *block = *list;
  *list = block->next;
  block->size = size;
  block->id = space_new_id();
  return block;
}

void space_give(struct space_block *block) {
  size_t stride;
  bool low = block->address < 4ULL << 30;
  struct space_block **list = &free_blocks[low][class_of(block->size, &stride)];
  if (block->backing == SPACE_BACKED) {
    if (stride >= PAGE) {
      space_drop_part(block->address, stride, true, &block->backing);
    }
    backed -= block->host ? 0 : block->size;
  }
  block->backing = SPACE_UNTOUCHED;
  block->kind = SPACE_LINEAR;
  block->host = false;
  block->owner = NULL;
  block->size = 0;
  block->next = *list;
  *list = block;
}

struct space_block *space_find(uintptr_t address) {
  if (address >> ADDRESS_BITS) {
    return NULL;
  }
  struct span **leaf = pages[address / PAGE >> LEAF_BITS];
  struct span *span = leaf ? leaf[address / PAGE & ((1U << LEAF_BITS) - 1)] : NULL;
  if (!span) {
    return NULL;
  }
  size_t index = (address - span->base) / span->stride;
  struct space_block *block = index < span->count ? &span->blocks[index] : NULL;
  return block && block->size && address - block->address < block->size ? block : NULL;
}

void space_back_part(uintptr_t address, size_t size, bool always, enum space_backing *backing) {
  uintptr_t from = address & ~(HOST_PAGE - 1);
  uintptr_t to = (address + size + HOST_PAGE - 1) & ~(HOST_PAGE - 1);
  if (*backing != SPACE_UNTOUCHED) {
    return;
  }
  if ((!always && size > BACKING_LIMIT - backed) ||
      mprotect((void *)from, to - from, PROT_READ | PROT_WRITE) != 0) {
    *backing = SPACE_NO_STORE;
    return;
  }
  *backing = SPACE_BACKED;
  backed += always ? 0 : size;
}

/* A page that neighbours share stays as it is. */
void space_drop_part(uintptr_t address, size_t size, bool always, enum space_backing *backing) {
  uintptr_t from = (address + HOST_PAGE - 1) & ~(HOST_PAGE - 1);
  uintptr_t to = (address + size) & ~(HOST_PAGE - 1);
  if (*backing == SPACE_BACKED) {
    backed -= always ? 0 : size;
    if (from < to) {
      madvise((void *)from, to - from, MADV_DONTNEED);
      mprotect((void *)from, to - from, PROT_NONE);
    }
  }
  *backing = SPACE_UNTOUCHED;
}

void space_back(struct space_block *block, bool always) {
  if (block->backing == SPACE_UNTOUCHED) {
    space_back_part(block->address, block->size, always, &block->backing);
    block->host = always && block->backing == SPACE_BACKED;
  }
}

void space_each(void (*visit)(struct space_block *block, void *argument), void *argument) {
  for (struct span *span = spans; span; span = span->next) {
    for (size_t i = 0; i < span->count; i++) {
      if (span->blocks[i].size) {
        visit(&span->blocks[i], argument);
      }
    }
  }
}
