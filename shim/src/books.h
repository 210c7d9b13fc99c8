/* SPDX-License-Identifier: Apache-2.0
 *
 * Reserve, call, commit: what hooks do with a share.
 */
#ifndef ALIQUOT_BOOKS_H
#define ALIQUOT_BOOKS_H

#include "abi.h"
#include "records.h"
#include "share.h"

/* Bytes announced in a slot and not yet recorded. */
struct aq_charge {
  struct aq_share *share;
  uint64_t generation;
  uint64_t bytes;
};

/* Announces `bytes` if the share stays within its limit at every instant. False: refused and
 * counted, the caller answers OUT_OF_MEMORY. */
bool aq_reserve(struct aq_share *share, uint64_t bytes, struct aq_charge *charge);

/* Makes a charge one of `bytes`. False: refused and counted, the charge is as it was. */
bool aq_reserve_exactly(struct aq_charge *charge, uint64_t bytes);

/* The driver refused: nothing stays charged. */
void aq_cancel(const struct aq_charge *charge);

/* The driver gave `pointer`: the charge becomes its record. False: no memory for a record;
 * the caller frees the pointer and cancels. */
bool aq_commit(const struct aq_charge *charge, CUdeviceptr pointer, CUcontext context);

/* A pointer is about to be freed: takes its record out, since the address may be in use
 * again before the driver returns. False: not ours, ask the driver. */
struct aq_freed {
  struct aq_record record;
  uint64_t generation;
};
bool aq_free_begin(CUdeviceptr pointer, struct aq_freed *freed);
/* What came of it: the bytes go back only after the driver has freed them. */
void aq_free_end(const struct aq_freed *freed, bool done);

/* A context: announced before it is made, at the quota's estimate. */
bool aq_context_reserve(struct aq_share *share);
void aq_context_cancel(struct aq_share *share);
/* Its memory is gone with it. */
void aq_context_drop(struct aq_share *share, CUcontext context);
/* A context is about to be destroyed: its handle may be in use again before the driver returns,
 * so what it holds goes by a name of its own. To aq_context_drop, or to be put back. */
CUcontext aq_context_rename(struct aq_share *share, CUcontext context);
void aq_context_put_back(struct aq_share *share, CUcontext name, CUcontext context);

/* The share's view of a GPU: its size, what is free of it, what all processes of the share
 * take. Sweeps at most every 50 ms: a live process must not go on seeing a dead one's memory. */
struct aq_view {
  uint64_t total;
  uint64_t free;
  uint64_t used;
};
struct aq_view aq_view(struct aq_share *share, uint64_t physical_total, uint64_t physical_free);
/* True if the limit is reached, or passed by what was measured; counted as a refusal. */
bool aq_is_full(struct aq_share *share);
/* The size alone. */
uint64_t aq_view_total(const struct aq_share *share, uint64_t physical_total);
/* What one slot counts. */
uint64_t aq_slot_charge(const struct aq_slot *slot, uint64_t context_estimate);

#endif
