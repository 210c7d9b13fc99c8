/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process holds: one record per live thing, sharded by what it is and its key.
 *
 * Any thread. A shard's spin bit is held for a few instructions, never across a driver call,
 * and the process that holds it is the only one that waits for it.
 */
#ifndef ALIQUOT_RECORDS_H
#define ALIQUOT_RECORDS_H

#include "abi.h"
#include "share.h"

/* What a record stands for, and so what its key is. Keys of different things never meet. */
enum aq_thing {
  AQ_POINTER, /* device address; of a pool, if `number` names one: the pool's charge holds the bytes;
               * `count`: managed */
  AQ_LEAVING, /* one that is being freed in stream order: a number of ours */
  AQ_ARRAY,   /* CUarray */
  AQ_MIPMAP,  /* CUmipmappedArray */
  AQ_HANDLE,  /* of virtual memory; its bytes, until it is mapped or shared for the first time */
  AQ_MEMORY,  /* ... which then go here, by number; `count` holders */
  AQ_MAPPING, /* address of a mapping of memory `number`; not charged */
  AQ_BINDING, /* ... of a binding to multicast object `context`; not charged */
  AQ_POOL,    /* pool handle: its number; not charged */
  AQ_RESERVE, /* by number: what a pool has reserved; `count`: managed */
  AQ_EXEC,    /* executable graph: the bytes of its allocation nodes; not charged */
  AQ_LIMIT,   /* context, and which of its limits; `number`: its first value */
  AQ_CODE,    /* module or library; counted as code */
  AQ_GREEN,   /* green context: its device; `context`, if it has one */
  AQ_ALIAS,   /* context of a green one: that of whose device has its memory, `context` */
};

struct aq_record {
  uint64_t key; /* 0 = empty */
  uint64_t bytes;
  CUcontext context; /* whose end is this thing's end; or as above */
  uint32_t number;
  uint16_t count;
  uint8_t share;
  uint8_t thing;
};

/* Takes a record out. False if there is none. `*generation` is that of the share's slot at this
 * instant: the bytes are to be given back to this one only. */
bool aq_records_take(const struct aq_share *shares, enum aq_thing thing, uint64_t key,
                     struct aq_record *record, uint64_t *generation);

/* The same for one of its holders: one that others hold as well stays, with a count less. `*record`: what
 * it was before. */
bool aq_records_let_go(const struct aq_share *shares, enum aq_thing thing, uint64_t key,
                       struct aq_record *record, uint64_t *generation);

/* A copy of a record. False if there is none. */
bool aq_records_find(enum aq_thing thing, uint64_t key, struct aq_record *record);

/* The one with key <= `address` < key + bytes, by looking at all. */
bool aq_records_find_around(enum aq_thing thing, uint64_t address, struct aq_record *record);

/* The first one found that belongs to `context`, by looking at all. */
bool aq_records_find_of(enum aq_thing thing, CUcontext context, struct aq_record *record);

/* Adds to a record's bytes (modulo 2^64) and count. `*record`: what it is now. `*generation`: as
 * above. False if there is none. */
bool aq_records_change(const struct aq_share *shares, enum aq_thing thing, uint64_t key, uint64_t bytes,
                       int count, struct aq_record *record, uint64_t *generation);

/* Puts a record in; `*replaced` receives an older one (key = 0: none) with the
 * bytes that it was charged, whose end we have not seen. `*generation`: as above. False: no memory. */
bool aq_records_put(const struct aq_share *shares, const struct aq_record *record, struct aq_record *replaced,
                    uint64_t *generation);

/* Moves all records of `context` on `share` to another one. */
void aq_records_move(const struct aq_share *share, CUcontext context, CUcontext other);

/* Its bytes are managed memory. */
static inline bool aq_record_is_managed(const struct aq_record *record) {
  return record->count &&
         (record->thing == AQ_POINTER || record->thing == AQ_LEAVING || record->thing == AQ_RESERVE);
}

static inline uint64_t aq_record_managed(const struct aq_record *record) {
  return aq_record_is_managed(record) ? record->bytes : 0;
}

/* Takes out all records of `context` on `share`, and sums them up. `*generation`: as above. */
struct aq_dropped {
  uint64_t bytes;         /* that counted by themselves */
  uint64_t managed_bytes; /* of them */
  uint64_t code_bytes;
};
void aq_records_drop_context(const struct aq_share *share, CUcontext context, struct aq_dropped *dropped,
                             uint64_t *generation);

/* How much of `share` is managed memory, by looking at all. While no changes are made. */
uint64_t aq_records_managed(const struct aq_share *share);

/* Stops all changes; between the two, totals and generations stand still. */
void aq_records_lock_all(void);
void aq_records_unlock_all(void);
uint64_t aq_records_total(unsigned share);

/* In a forked child: forgets everything, locks included. */
void aq_records_reset(void);

#endif
