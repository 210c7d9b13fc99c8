/* SPDX-License-Identifier: Apache-2.0
 *
 * Addresses for memory that another process or program has: never charged here.
 */
#ifndef SIM_IMPORT_H
#define SIM_IMPORT_H

#include "memory.h"

/* By which call the addresses end. */
enum import_kind {
  IMPORT_POOL,     /* cuMemPoolImportPointer; cuMemFree */
  IMPORT_IPC,      /* cuIpcOpenMemHandle; cuIpcCloseMemHandle */
  IMPORT_EXTERNAL, /* cuExternalMemoryGetMappedBuffer; cuMemFree */
};

/* Owner of a block of kind SPACE_IMPORT. */
struct import {
  enum import_kind kind;
  CUcontext context;  /* with which it ends; NULL: with none */
  void *source;       /* pool or external memory */
  uint64_t source_id; /* of an IPC handle: the address at the exporter */
  unsigned opened;    /* how often */
};

/* NULL: no addresses. */
struct space_block *import_take(size_t size, struct import about);
void import_give(struct space_block *block);

#endif
