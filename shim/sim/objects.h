/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects behind opaque handles: a handle that is wild or stale is seen as
 * such, unless its object is in use again. Not thread safe.
 */
#ifndef SIM_OBJECTS_H
#define SIM_OBJECTS_H

#include <stdbool.h>
#include <stddef.h>

struct objects_block;

/* Objects of one size. Zeroed but for the size = none yet. */
struct objects {
  size_t size;
  struct objects_block *blocks;
  void *free;
};

/* A zeroed object, or NULL. */
void *objects_take(struct objects *objects);
void objects_give(struct objects *objects, void *object);

/* Whether the pointer is one of the taken objects. */
bool objects_has(const struct objects *objects, const void *pointer);

/* Call `visit` with each; it may give the object back. */
void objects_each(struct objects *objects, void (*visit)(void *object, void *argument), void *argument);

#endif
