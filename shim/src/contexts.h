/* SPDX-License-Identifier: Apache-2.0
 *
 * The contexts of this process: which share each one burdens.
 */
#ifndef ALIQUOT_CONTEXTS_H
#define ALIQUOT_CONTEXTS_H

#include "abi.h"
#include "share.h"

enum { AQ_MAX_DEVICES = 64 };

/* A context made by cuCtxCreate. False: more than we can remember. */
bool aq_contexts_add(CUcontext context, struct aq_share *share);
/* One use more (cuCtxAttach), or less. False: it has none beyond the first, or is not ours to count. */
bool aq_contexts_use(CUcontext context, int uses);
/* It is gone. The share to settle with; NULL if it was not ours to count. */
struct aq_share *aq_contexts_remove(CUcontext context);

/* The primary context of an ordinal, which exists while someone retains it: the driver says
 * whether it is active, we whether it is in the books. */
/* About to be retained: reserved, unless it is in the books already or another thread has
 * reserved it. False: refused and counted. */
bool aq_primary_enter(CUdevice device, struct aq_share *share);
/* What came of it; NULL: the driver refused. */
void aq_primary_leave(CUdevice device, struct aq_share *share, CUcontext context);
/* To be read before asking the driver whether it is still active ... */
uint64_t aq_primary_epoch(CUdevice device);
/* NULL: not in the books. */
CUcontext aq_primary_context(CUdevice device);
/* ... and given back when it is not: the context and its memory leave the books. False if it was
 * retained meanwhile: ask the driver again. */
bool aq_primary_end(CUdevice device, struct aq_share *share, uint64_t epoch);

/* The context, if this process has exactly one; else NULL. No lock. */
CUcontext aq_contexts_sole(void);

/* A green context of `device`. */
void aq_contexts_add_green(CUgreenCtx green, CUdevice device);
/* False: not on record. */
bool aq_contexts_remove_green(CUgreenCtx green, CUdevice *device);
/* `context` stands for a green context, whose memory is the primary context's. */
void aq_contexts_add_alias(CUcontext context, CUgreenCtx green);
/* The context that memory ends with when `context` is current. */
CUcontext aq_contexts_owner(CUcontext context);

/* In a forked child. */
void aq_contexts_reset(void);

#endif
