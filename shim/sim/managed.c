/* SPDX-License-Identifier: Apache-2.0 */
#include "managed.h"

#include <stdlib.h>

#include "pool.h"

static struct managed *all;

static size_t pages_of(const struct managed *managed) {
  return (managed->size + SIM_PAGE - 1) / SIM_PAGE;
}

struct managed *managed_new(CUcontext context, uintptr_t base, size_t size) {
  struct managed *managed = calloc(1, sizeof *managed);
  uint8_t *where = managed ? calloc((size + SIM_PAGE - 1) / SIM_PAGE, 1) : NULL;
  if (!where) {
    free(managed);
    return NULL;
  }
  managed->context = context;
  managed->base = base;
  managed->size = size;
  managed->where = where;
  managed->next = all;
  if (all) {
    all->previous = managed;
  }
  all = managed;
  return managed;
}

/* The last page may be a part of one. */
static size_t page_size(const struct managed *managed, size_t page) {
  size_t rest = managed->size - page * SIM_PAGE;
  return rest < SIM_PAGE ? rest : SIM_PAGE;
}

static void leave_page(struct managed *managed, size_t page) {
  if (managed->where[page]) {
    uint32_t gpu = managed->where[page] - 1U;
    books_change(&driver.books, gpu, memory_refund(page_size(managed, page)));
    managed->resident[gpu]--;
    managed->where[page] = 0;
  }
}

void managed_end(struct managed *managed) {
  for (size_t page = 0; page < pages_of(managed); page++) {
    leave_page(managed, page);
  }
  *(managed->previous ? &managed->previous->next : &all) = managed->next;
  if (managed->next) {
    managed->next->previous = managed->previous;
  }
  free(managed->where);
  free(managed);
}

struct managed *managed_around(uintptr_t address, size_t size) {
  struct memory_range range;
  if (!memory_locate(address, &range) || size > range.size - (address - range.base)) {
    return NULL;
  }
  if (range.block->kind == SPACE_MANAGED) {
    return range.block->owner;
  }
  return range.block->kind == SPACE_CHUNK ? ((struct arena_chunk *)range.block->owner)->managed : NULL;
}

/* Evict one page from the GPU that is not in the range. */
static bool evict(uint32_t gpu, const struct managed *except, size_t first, size_t last) {
  for (struct managed *managed = all; managed; managed = managed->next) {
    for (size_t page = 0; managed->resident[gpu] && page < pages_of(managed); page++) {
      bool wanted = managed == except && page >= first && page <= last;
      if (managed->where[page] == gpu + 1 && !wanted) {
        leave_page(managed, page);
        return true;
      }
    }
  }
  return false;
}

void managed_touch(struct managed *managed, uintptr_t address, size_t size, uint32_t gpu) {
  size_t first = (address - managed->base) / SIM_PAGE;
  size_t last = (address + size - 1 - managed->base) / SIM_PAGE;
  for (size_t page = first; page <= last; page++) {
    if (managed->where[page] == gpu + 1) {
      continue;
    }
    struct books_delta delta = memory_allocation(page_size(managed, page));
    while (!memory_charge(gpu, delta)) {
      if (!evict(gpu, managed, first, last)) {
        return;
      }
    }
    leave_page(managed, page);
    managed->where[page] = (uint8_t)(gpu + 1);
    managed->resident[gpu]++;
  }
}

void managed_leave(struct managed *managed, uintptr_t address, size_t size, bool whole) {
  size_t start = address - managed->base;
  size_t first = whole ? (start + SIM_PAGE - 1) / SIM_PAGE : start / SIM_PAGE;
  size_t end = whole ? (start + size) / SIM_PAGE : (start + size + SIM_PAGE - 1) / SIM_PAGE;
  for (size_t page = first; page < end; page++) {
    leave_page(managed, page);
  }
}
