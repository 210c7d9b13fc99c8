/* SPDX-License-Identifier: Apache-2.0
 *
 * Small tables under one mutex, which is never held across a driver call.
 */
#include "contexts.h"

#include <pthread.h>
#include <string.h>

#include "books.h"

enum { MAX_CONTEXTS = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
  CUcontext context;
  struct aq_share *share;
  unsigned uses; /* beyond the first */
} made[MAX_CONTEXTS];
static size_t made_count;

static struct {
  CUcontext context; /* NULL = not in the books */
  uint64_t epoch;    /* +1 with each retention */
  unsigned askers;   /* threads that retain it now */
  bool reserved;     /* one context, in the books for the first of them that gets it */
} primaries[AQ_MAX_DEVICES];

static CUcontext sole;
static unsigned aliases; /* of green contexts */

/* Under the lock, after each change. */
static void find_sole(void) {
  size_t count = made_count;
  CUcontext last = made_count ? made[0].context : NULL;
  for (int device = 0; device < AQ_MAX_DEVICES; device++) {
    if (!primaries[device].context)
      continue;
    last = primaries[device].context;
    count++;
  }
  __atomic_store_n(&sole, count == 1 ? last : NULL, __ATOMIC_RELEASE);
}

CUcontext aq_contexts_sole(void) {
  return __atomic_load_n(&sole, __ATOMIC_ACQUIRE);
}

bool aq_contexts_add(CUcontext context, struct aq_share *share) {
  pthread_mutex_lock(&lock);
  bool fits = made_count < MAX_CONTEXTS;
  if (fits) {
    made[made_count].context = context;
    made[made_count].share = share;
    made[made_count].uses = 0;
    made_count++;
    find_sole();
  }
  pthread_mutex_unlock(&lock);
  return fits;
}

bool aq_contexts_use(CUcontext context, int uses) {
  bool changed = false;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < made_count && !changed; i++)
    if (made[i].context == context && (uses > 0 || made[i].uses > 0)) {
      made[i].uses += (unsigned)uses;
      changed = true;
    }
  pthread_mutex_unlock(&lock);
  return changed;
}

struct aq_share *aq_contexts_remove(CUcontext context) {
  struct aq_share *share = NULL;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < made_count; i++) {
    if (made[i].context != context)
      continue;
    share = made[i].share;
    made[i] = made[--made_count];
    find_sole();
    break;
  }
  pthread_mutex_unlock(&lock);
  return share;
}

/* Whoever comes second waits until the first knows whether there is room, never for the driver. */
bool aq_primary_enter(CUdevice device, struct aq_share *share) {
  pthread_mutex_lock(&lock);
  bool counted = primaries[device].context || primaries[device].reserved;
  if (!counted)
    primaries[device].reserved = counted = aq_context_reserve(share);
  if (counted)
    primaries[device].askers++;
  pthread_mutex_unlock(&lock);
  return counted;
}

void aq_primary_leave(CUdevice device, struct aq_share *share, CUcontext context) {
  pthread_mutex_lock(&lock);
  primaries[device].askers--;
  if (context) {
    if (!primaries[device].context)
      primaries[device].reserved = false;
    primaries[device].context = context;
    primaries[device].epoch++;
    find_sole();
  }
  if (primaries[device].reserved && primaries[device].askers == 0) {
    primaries[device].reserved = false;
    aq_context_cancel(share);
  }
  pthread_mutex_unlock(&lock);
}

uint64_t aq_primary_epoch(CUdevice device) {
  pthread_mutex_lock(&lock);
  uint64_t epoch = primaries[device].epoch;
  pthread_mutex_unlock(&lock);
  return epoch;
}

CUcontext aq_primary_context(CUdevice device) {
  pthread_mutex_lock(&lock);
  CUcontext context = primaries[device].context;
  pthread_mutex_unlock(&lock);
  return context;
}

/* A new primary context may have the same handle, but holds nothing before it is in the books:
 * hence all under the lock. */
bool aq_primary_end(CUdevice device, struct aq_share *share, uint64_t epoch) {
  pthread_mutex_lock(&lock);
  bool ended = primaries[device].epoch == epoch;
  if (ended && primaries[device].context) {
    aq_context_drop(share, primaries[device].context);
    primaries[device].context = NULL;
    primaries[device].reserved = primaries[device].askers > 0; /* they count on it */
    if (!primaries[device].reserved)
      aq_context_cancel(share);
    find_sole();
  }
  pthread_mutex_unlock(&lock);
  return ended;
}

void aq_contexts_add_green(CUgreenCtx green, CUdevice device) {
  aq_note(&(struct aq_record){.thing = AQ_GREEN, .key = (uintptr_t)green, .number = (uint32_t)device});
}

bool aq_contexts_remove_green(CUgreenCtx green, CUdevice *device) {
  struct aq_freed freed;
  struct aq_freed alias;
  if (!aq_free_begin(AQ_GREEN, (uintptr_t)green, &freed))
    return false;
  if (freed.record.context && aq_free_begin(AQ_ALIAS, (uintptr_t)freed.record.context, &alias))
    __atomic_sub_fetch(&aliases, 1, __ATOMIC_SEQ_CST);
  *device = (CUdevice)freed.record.number;
  return true;
}

void aq_contexts_add_alias(CUcontext context, CUgreenCtx green) {
  struct aq_freed freed;
  struct aq_record known;
  if (aq_records_find(AQ_ALIAS, (uintptr_t)context, &known) ||
      !aq_free_begin(AQ_GREEN, (uintptr_t)green, &freed))
    return;
  __atomic_add_fetch(&aliases, 1, __ATOMIC_SEQ_CST);
  aq_note(&(struct aq_record){
      .thing = AQ_ALIAS, .key = (uintptr_t)context, .context = primaries[freed.record.number].context});
  freed.record.context = context;
  aq_note(&freed.record);
}

CUcontext aq_contexts_owner(CUcontext context) {
  struct aq_record alias;
  if (__atomic_load_n(&aliases, __ATOMIC_ACQUIRE) > 0 &&
      aq_records_find(AQ_ALIAS, (uintptr_t)context, &alias))
    return alias.context;
  return context;
}

void aq_contexts_reset(void) {
  memset(made, 0, sizeof(made));
  memset(primaries, 0, sizeof(primaries));
  made_count = 0;
  aliases = 0;
  sole = NULL;
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
