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
  CUcontext context; /* with which it ends; NULL: with none */
  CUmemoryPool pool; /* IMPORT_POOL */
  /* IMPORT_IPC: whose allocation, and how often it was opened. */
  struct import *next;
  struct space_block *block;
  uint32_t source_slot;
  uint64_t source_life;
  uint64_t source_id;
  unsigned opened;
};

/* NULL: no addresses. */
struct space_block *import_take(size_t size, struct import about);
void import_give(struct space_block *block);

/* The context ends, and what was opened in it. */
void ipc_forget(CUcontext context);
void externals_forget(CUcontext context);

#endif
