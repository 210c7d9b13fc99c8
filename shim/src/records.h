/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process holds: one record per live pointer or context, sharded by key.
 *
 * Any thread. A shard's spin bit is held for a few instructions, never across a driver call,
 * and the process that holds it is the only one that waits for it.
 */
#ifndef ALIQUOT_RECORDS_H
#define ALIQUOT_RECORDS_H

#include "abi.h"
#include "share.h"

struct aq_record {
  uint64_t key; /* device pointer; 0 = empty */
  uint64_t bytes;
  CUcontext context;
  unsigned share;
};

/* Takes the record of `key` out. False if there is none. `*generation` is that of the share's
 * slot at this instant: the bytes are to be given back to this one only. */
bool aq_records_take(const struct aq_share *shares, uint64_t key, struct aq_record *record,
                     uint64_t *generation);

/* Puts a record in; `*replaced` receives an older one of the same key (bytes = 0: none), whose
 * end we have not seen. `*generation`: as above. False: no memory. */
bool aq_records_put(const struct aq_share *shares, const struct aq_record *record, struct aq_record *replaced,
                    uint64_t *generation);

/* Moves all records of `context` on `share` to another one. */
void aq_records_move(const struct aq_share *share, CUcontext context, CUcontext other);

/* Takes out all records of `context` on `share`; the sum of their bytes. `*generation`: as
 * above. */
uint64_t aq_records_drop_context(const struct aq_share *share, CUcontext context, uint64_t *generation);

/* Stops all changes; between the two, totals and generations stand still. */
void aq_records_lock_all(void);
void aq_records_unlock_all(void);
uint64_t aq_records_total(unsigned share);

/* In a forked child: forgets everything, locks included. */
void aq_records_reset(void);

#endif
