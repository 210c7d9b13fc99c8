/* SPDX-License-Identifier: Apache-2.0
 *
 * Reserve, call, commit: what hooks do with a share.
 */
#ifndef ALIQUOT_BOOKS_H
#define ALIQUOT_BOOKS_H

#include "abi.h"
#include "hot.h"
#include "records.h"
#include "share.h"

/* Bytes announced in a slot and not yet recorded. */
struct aq_charge {
  struct aq_share *share;
  uint64_t generation;
  uint64_t bytes;
};

/* Called before a refusal, without a lock: what the program gave back to its pools is there for it to
 * take. Set once, before the first reservation; NULL: nothing to take back. */
extern void (*aq_reclaim)(struct aq_share *share);

/* Announces `bytes` if the share stays within its limit at every instant. False: refused and
 * counted, the caller answers OUT_OF_MEMORY. */
bool aq_reserve(struct aq_share *share, uint64_t bytes, struct aq_charge *charge);

/* Makes a charge one of `bytes`. False: refused and counted, the charge is as it was. */
bool aq_reserve_exactly(struct aq_charge *charge, uint64_t bytes);

/* The driver refused: nothing stays charged. */
void aq_cancel(const struct aq_charge *charge);

/* The driver gave it: the charge becomes its record, with the charge's bytes and share. False: no
 * memory for a record; the caller gives the thing back and cancels. */
bool aq_commit(const struct aq_charge *charge, const struct aq_record *record);

/* The same for a thing whose bytes are charged elsewhere, if at all. */
bool aq_note(const struct aq_record *record);

/* Reserves without ever waiting, and without counting a refusal. */
bool aq_reserve_at_once(struct aq_share *share, uint64_t bytes, struct aq_charge *charge);
/* Takes what has been given already: the limit is not asked. */
void aq_force(struct aq_share *share, uint64_t bytes, struct aq_charge *charge);

/* Adds a charge to a record that is there, or takes bytes from it. */
void aq_charge_into(const struct aq_charge *charge, enum aq_thing thing, uint64_t key);
void aq_give_from(struct aq_share *share, enum aq_thing thing, uint64_t key, uint64_t bytes);

/* A thing is about to be given back: takes its record out, since its key may be in use again
 * before the driver returns. False: not ours, ask the driver. */
struct aq_freed {
  struct aq_record record;
  uint64_t generation;
};
bool aq_free_begin(enum aq_thing thing, uint64_t key, struct aq_freed *freed);
/* What came of it: the bytes go back only after the driver has freed them. */
void aq_free_end(const struct aq_freed *freed, bool done);

/* Managed memory that was given, or (modulo 2^64) taken back: for the agent, which cannot know how much of it
 * is on the GPU. Freed memory on record is seen to. */
AQ_RARE void aq_managed_change(struct aq_share *share, uint64_t bytes);

/* A context: announced before it is made, at the quota's estimate. */
bool aq_context_reserve(struct aq_share *share);
void aq_context_cancel(struct aq_share *share);
/* Code that is to be loaded: what it really takes is measured by the agent. */
bool aq_code_reserve(struct aq_share *share, uint64_t bytes);
void aq_code_cancel(struct aq_share *share, uint64_t bytes);
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
/* True if more than `slack` beyond the limit is taken. */
bool aq_is_over(const struct aq_share *share, uint64_t slack);
/* True if `bytes` more would pass the limit. Not counted. */
bool aq_is_full_with(const struct aq_share *share, uint64_t bytes);
/* What is left of the limit; UINT64_MAX: there is none. */
uint64_t aq_headroom(const struct aq_share *share);

/* The right to risk passing the limit for the time of one driver call; one holder among all
 * processes. Waits a little. 0: someone else has it. Whoever is stopped or dies with it loses it. */
uint64_t aq_overdraft_take(struct aq_share *share);
void aq_overdraft_give(struct aq_share *share, uint64_t right);

/* CLOCK_MONOTONIC, coarse. */
uint64_t aq_now_ns(void);
/* Before another attempt: longer for higher slots. Keeps errno. */
AQ_RARE void aq_pause_after(int attempt, const struct aq_share *share, const struct aq_slot *slot);

/* What a context counts until it is measured. */
uint64_t aq_context_estimate(const struct aq_share *share);
/* A refusal that was decided elsewhere. */
void aq_count_refusal(struct aq_share *share);
/* The size alone. */
uint64_t aq_view_total(const struct aq_share *share, uint64_t physical_total);

#endif
