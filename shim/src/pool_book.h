/* SPDX-License-Identifier: Apache-2.0
 *
 * What pools.c and pool_table.c know of a pool.
 */
#ifndef ALIQUOT_POOL_BOOK_H
#define ALIQUOT_POOL_BOOK_H

#include "pools.h"

/* LEAVING_POOL: it is being destroyed, its handle must not be used any more. */
enum aq_pool_kind { NO_POOL, DEVICE_POOL, GRAPH_POOL, LEAVING_POOL, DESTROYED_POOL };

struct aq_pool {
  uint32_t number;
  unsigned held; /* by threads that rely on its handle */
  unsigned char locked;
  uint64_t asked;    /* how often the driver was asked what is reserved */
  uint64_t answered; /* and it is known what its answer means for the charge */
  /* The rest is of the pool that has the number now. */
  CUmemoryPool handle;
  struct aq_share *share; /* NULL: nobody pays */
  CUdevice device;        /* of graph memory */
  uint32_t trims;
  unsigned relying; /* launches under way that announced nothing: what is charged stays charged */
  enum aq_pool_kind kind;
  bool step_is_known; /* the pool has been seen not to grow by less */
  uint64_t used;      /* live sizes, and those being asked for */
  uint64_t charged;   /* bytes of its record: what was reserved at the newest reading */
  uint64_t announced; /* by calls in progress, beyond that */
  uint64_t tickets;   /* drawn */
  uint64_t newest;    /* whose reading was the last to count */
  uint64_t threshold;
  uint64_t step; /* by which it grows; 0: not seen to grow yet */
  struct aq_pool *next_free;
};

/* One that was given out. */
struct aq_pool *aq_pool_numbered(uint32_t number);

static inline enum aq_pool_kind aq_pool_kind_of(const struct aq_pool *pool) {
  return __atomic_load_n(&pool->kind, __ATOMIC_SEQ_CST);
}

static inline void aq_pool_let_go(struct aq_pool *pool) {
  __atomic_sub_fetch(&pool->held, 1, __ATOMIC_SEQ_CST);
}

/* It is what it is, and its handle good, until it is let go. False: it is being destroyed, or has been. */
static inline bool aq_pool_hold(struct aq_pool *pool) {
  __atomic_add_fetch(&pool->held, 1, __ATOMIC_SEQ_CST);
  enum aq_pool_kind kind = aq_pool_kind_of(pool);
  if (kind == DEVICE_POOL || kind == GRAPH_POOL)
    return true;
  aq_pool_let_go(pool);
  return false;
}

/* A destroyed one's charge is given back, and its number can be used again. Once, whoever is last. */
AQ_RARE void aq_pool_retire(struct aq_pool *pool);

/* Asks the driver to take back what it does not use. */
void aq_pool_trim(struct aq_pool *pool);

#endif
