/* SPDX-License-Identifier: Apache-2.0
 *
 * Pairs of events around launches, asked later how far they lie apart.
 *
 * Events belong to a context and end with it. Any thread; no lock is held across a driver call.
 */
#ifndef ALIQUOT_PROBES_H
#define ALIQUOT_PROBES_H

#include "abi.h"
#include "prices.h"
#include "share.h"

struct aq_probe;

/* Marks the beginning in `stream`. NULL: this launch goes unmeasured. */
struct aq_probe *aq_probe_begin(struct aq_share *share, struct aq_price *price, uint64_t key, CUstream stream,
                                bool per_thread);
/* Marks the end; `launched`: there is something to measure. */
void aq_probe_end(struct aq_probe *probe, CUstream stream, bool launched);

/* Asks those that may be done, and settles what they say with price and share. */
void aq_probes_poll(void);

/* GPU time that this process has drawn for the share since a launch began that is measured and not done; of
 * several the most. 0: there is none. */
uint64_t aq_probes_behind(const struct aq_share *share);
/* The same since the last launch that is measured, done or not. */
uint64_t aq_probes_unseen(const struct aq_share *share);
/* Those that are not done yet may wait for later launches: aq_probes_behind leaves them out, and says 0 until
 * another one is done. */
void aq_probes_give_up(const struct aq_share *share);

/* As aq_probes_poll, for a program that waited for its GPU. Cheap when nothing is measured. */
void aq_probes_settle(void);

/* A context is about to be destroyed, NULL: any may be. */
void aq_probes_drop(CUcontext context);

/* In a forked child. */
void aq_probes_reset(void);

#endif
