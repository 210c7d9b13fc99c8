/* SPDX-License-Identifier: Apache-2.0
 *
 * Device addresses of this process: real, reserved host addresses that cost
 * nothing until a copy touches them. Physical memory is the books' business.
 *
 * Blocks come in four sizes per power of two and keep their place for ever; a
 * freed block is the next one of its size to be given out. So both directions
 * take constant time, addresses are reused at once, and each size's addresses
 * never exceed what was once live of it. Not thread safe.
 */
#ifndef SIM_SPACE_H
#define SIM_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum space_backing {
  SPACE_UNTOUCHED,
  SPACE_BACKED,   /* readable and writable memory */
  SPACE_NO_STORE, /* beyond the process's share of host memory: writes are dropped, reads give zeros */
};

/* What lies at a block's addresses, and so what its owner is. */
enum space_kind {
  SPACE_LINEAR,    /* an allocation; a context */
  SPACE_MANAGED,   /* a managed one; managed.h */
  SPACE_CHUNK,     /* part of a pool, arena.h */
  SPACE_RANGE,     /* reserved addresses, vmm.h */
  SPACE_GRAPH,     /* an alloc node's, graph_memory.h */
  SPACE_IMPORT,    /* memory of another process or program, import.h */
  SPACE_VARIABLES, /* a module's; a context */
};

struct space_block {
  uintptr_t address;
  size_t size; /* as asked for; 0 = free */
  struct space_block *next;
  void *owner;
  uint64_t id; /* never used again */
  enum space_kind kind;
  enum space_backing backing;
  bool host;    /* the host may use it directly: backed whatever its size */
  bool leaving; /* freed in stream order, and not gone yet; late.h */
};

/* `low`: below 4 GiB, for the CUDA 2 ABI. NULL: no addresses left. */
struct space_block *space_take(size_t size, bool low);
void space_give(struct space_block *block);

/* A number for an allocation, which no other of the process has. */
uint64_t space_new_id(void);

/* The live block around an address, or NULL. */
struct space_block *space_find(uintptr_t address);

/* Make the block's memory usable by the host, whatever its size if `always`. */
void space_back(struct space_block *block, bool always);

/* The same for a part of a block, whose state the caller keeps; and back to untouched. */
void space_back_part(uintptr_t address, size_t size, bool always, enum space_backing *backing);
void space_drop_part(uintptr_t address, size_t size, bool always, enum space_backing *backing);

/* Call `visit` with each live block; it may give the block back. */
void space_each(void (*visit)(struct space_block *block, void *argument), void *argument);

#endif
