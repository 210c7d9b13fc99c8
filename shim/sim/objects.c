/* SPDX-License-Identifier: Apache-2.0 */
#include "objects.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 256

/* Before each object. */
struct mark {
  _Alignas(16) bool taken;
};

struct objects_block {
  struct objects_block *next;
  _Alignas(16) char memory[]; /* marks and objects in turn */
};

static size_t stride_of(const struct objects *objects) {
  return sizeof(struct mark) + (objects->size + 15) / 16 * 16;
}

static struct mark *mark_of(void *object) {
  return (struct mark *)((char *)object - sizeof(struct mark));
}

/* While an object is free, its first bytes point to the next free one. */
static bool add_block(struct objects *objects) {
  size_t stride = stride_of(objects);
  struct objects_block *block = calloc(1, sizeof *block + COUNT * stride);
  if (!block) {
    return false;
  }
  block->next = objects->blocks;
  objects->blocks = block;
  for (size_t i = COUNT; i-- > 0;) {
    void *object = block->memory + i * stride + sizeof(struct mark);
    memcpy(object, &objects->free, sizeof objects->free);
    objects->free = object;
  }
  return true;
}

void *objects_take(struct objects *objects) {
  if (!objects->free && !add_block(objects)) {
    return NULL;
  }
  void *object = objects->free;
  memcpy(&objects->free, object, sizeof objects->free);
  memset(object, 0, objects->size);
  mark_of(object)->taken = true;
  return object;
}

void objects_give(struct objects *objects, void *object) {
  mark_of(object)->taken = false;
  memcpy(object, &objects->free, sizeof objects->free);
  objects->free = object;
}

bool objects_has(const struct objects *objects, const void *pointer) {
  size_t stride = stride_of(objects);
  for (struct objects_block *block = objects->blocks; block; block = block->next) {
    uintptr_t offset = (uintptr_t)pointer - (uintptr_t)block->memory;
    if (offset < COUNT * stride) {
      return offset % stride == sizeof(struct mark) && mark_of(block->memory + offset)->taken;
    }
  }
  return false;
}

void objects_each(struct objects *objects, void (*visit)(void *object, void *argument), void *argument) {
  size_t stride = stride_of(objects);
  for (struct objects_block *block = objects->blocks; block; block = block->next) {
    for (size_t i = 0; i < COUNT; i++) {
      void *object = block->memory + i * stride + sizeof(struct mark);
      if (mark_of(object)->taken) {
        visit(object, argument);
      }
    }
  }
}
