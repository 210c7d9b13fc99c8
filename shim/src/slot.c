/* SPDX-License-Identifier: Apache-2.0
 *
 * A slot is owned through an open-file-description write lock on one byte of the ledger: the
 * kernel drops it at death and exec, whatever the pid namespace.
 *
 * The threads of a process share the description and never conflict there, hence the mutex
 * and "own slot skipped". A forked child shares it too: it closes its descriptor and never
 * unlocks.
 */
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "identity.h"
#include "records.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void aq_slot_lock(void) {
  pthread_mutex_lock(&mutex);
}

void aq_slot_unlock(void) {
  pthread_mutex_unlock(&mutex);
}

void aq_slot_reset_lock(void) {
  mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

static bool set_lock(int fd, unsigned index, short type) {
  struct flock byte = {
      .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(AQ_SLOT_LOCK_BASE + index), .l_len = 1};
  return fcntl(fd, F_OFD_SETLK, &byte) == 0;
}

/* Gets the descriptor and the lock of our slot back, if they were lost. */
static bool keep_descriptor(struct aq_share *share) {
  if (aq_share_is_ledger(share, share->fd))
    return true;
  share->fd = aq_share_open_ledger(share);
  if (share->fd >= 0 && share->slot)
    set_lock(share->fd, (unsigned)(share->slot - share->ledger->slot), F_WRLCK);
  return share->fd >= 0;
}

/* Nothing that anybody counts, not even an overhead that the agent wrote a moment too late. */
static bool is_idle(const struct aq_slot *slot) {
  uint64_t overhead = aq_word(&slot->overhead_bytes);
  return (overhead == 0 || overhead == AQ_OVERHEAD_UNKNOWN) && !aq_word(&slot->pid) &&
         !aq_word(&slot->used_bytes) && !aq_word(&slot->contexts) && !aq_word(&slot->code_bytes);
}

/* Under the slot's lock. */
static bool owner_lives(const struct aq_share *share, const struct aq_slot *slot) {
  struct aq_identity owner = {aq_word(&slot->pid), aq_word(&slot->pidns_inode), aq_word(&slot->start_ticks)};
  return aq_identity_lives(&owner, share->inode);
}

/* Under the slot's lock: empties it; an owner that lives all the same sees the generation. The pid goes
 * last, as the words before it would stay for ever if we were killed after it: the next one to sweep takes
 * a slot without a pid for empty. */
static void clear(struct aq_slot *slot) {
  aq_word_set(&slot->generation, aq_word(&slot->generation) + 1);
  aq_word_set(&slot->used_bytes, 0);
  aq_word_set(&slot->contexts, 0);
  aq_word_set(&slot->measured_contexts, 0);
  aq_word_set(&slot->code_bytes, 0);
  aq_word_set(&slot->measured_code_bytes, 0);
  aq_word_set(&slot->overhead_bytes, AQ_OVERHEAD_UNKNOWN);
  aq_word_set(&slot->peak_bytes, 0);
  aq_word_set(&slot->pool_bytes, 0);
  aq_word_set(&slot->graph_bytes, 0);
  aq_word_set(&slot->managed_bytes, 0);
  aq_word_set(&slot->host_pid, 0);
  __atomic_store_n(&slot->pid, 0, __ATOMIC_RELEASE);
}

/* Before anything is announced in a slot, everyone's sum includes it. */
static void publish(struct aq_ledger *ledger, uint64_t used) {
  uint64_t seen = __atomic_load_n(&ledger->slots_used, __ATOMIC_SEQ_CST);
  while (seen < used && !__atomic_compare_exchange_n(&ledger->slots_used, &seen, used, false,
                                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    ;
}

static void occupy(struct aq_share *share, struct aq_slot *slot) {
  struct aq_identity self;
  aq_identity_self(&self);
  clear(slot);
  aq_word_set(&slot->pidns_inode, self.pidns_inode);
  aq_word_set(&slot->start_ticks, self.start_ticks);
  aq_word_set(&slot->pid, self.pid);
  publish(share->ledger, (uint64_t)(slot - share->ledger->slot) + 1);
  aq_records_lock_all();
  share->pid = self.pid;
  aq_word_set(&share->generation, aq_word(&slot->generation));
  aq_word_set(&slot->contexts, aq_word(&share->contexts));
  aq_word_set(&slot->code_bytes, aq_word(&share->code_bytes));
  aq_word_set(&slot->managed_bytes, aq_records_managed(share));
  __atomic_store_n(&slot->used_bytes, aq_records_total(share->index), __ATOMIC_SEQ_CST);
  __atomic_store_n(&share->slot, slot, __ATOMIC_RELEASE);
  aq_records_unlock_all();
}

/* One pass over the slots; `dead_too` also takes over those whose owner is gone. */
static struct aq_slot *find_slot(struct aq_share *share, bool dead_too) {
  for (unsigned index = 0; index < AQ_SLOTS; index++) {
    struct aq_slot *slot = &share->ledger->slot[index];
    if ((!dead_too && !is_idle(slot)) || !set_lock(share->fd, index, F_WRLCK))
      continue;
    if (is_idle(slot) || (dead_too && !owner_lives(share, slot)))
      return slot;
    set_lock(share->fd, index, F_UNLCK);
  }
  return NULL;
}

static bool holds_slot(const struct aq_share *share) {
  const struct aq_slot *slot = share->slot;
  return slot && aq_word(&slot->generation) == share->generation && aq_word(&slot->pid) == share->pid;
}

/* Others add to the slot first and to the share last, and take away in reverse. */
static void restore_word(uint64_t *slots, const uint64_t *ours) {
  uint64_t seen = __atomic_load_n(slots, __ATOMIC_SEQ_CST);
  for (;;) {
    uint64_t held = __atomic_load_n(ours, __ATOMIC_SEQ_CST);
    if (seen >= held ||
        __atomic_compare_exchange_n(slots, &seen, held, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      break;
  }
}

/* What our own records say holds, should the shared words say less. */
static void restore(struct aq_share *share) {
  struct aq_slot *slot = share->slot;
  publish(share->ledger, (uint64_t)(slot - share->ledger->slot) + 1);
  aq_records_lock_all();
  uint64_t total = aq_records_total(share->index);
  uint64_t used = aq_word(&slot->used_bytes);
  if (used < total)
    __atomic_fetch_add(&slot->used_bytes, total - used, __ATOMIC_SEQ_CST);
  aq_records_unlock_all();
  restore_word(&slot->contexts, &share->contexts);
  restore_word(&slot->code_bytes, &share->code_bytes);
}

static void sweep_one(const struct aq_share *share, unsigned index) {
  struct aq_slot *slot = &share->ledger->slot[index];
  if (slot == share->slot || is_idle(slot) || !set_lock(share->fd, index, F_WRLCK))
    return;
  if (!is_idle(slot) && !owner_lives(share, slot))
    clear(slot);
  set_lock(share->fd, index, F_UNLCK);
}

static void sweep(struct aq_share *share) {
  uint64_t used = aq_word(&share->ledger->slots_used);
  for (unsigned index = 0; index < used && index < AQ_SLOTS; index++)
    sweep_one(share, index);
}

static bool claim(struct aq_share *share) {
  if (holds_slot(share))
    return true;
  if (!keep_descriptor(share))
    return false;
  struct aq_slot *slot = find_slot(share, false);
  if (!slot)
    slot = find_slot(share, true);
  if (!slot)
    return false;
  occupy(share, slot);
  sweep(share);
  return true;
}

bool aq_slot_claim(struct aq_share *share) {
  int saved = errno;
  aq_slot_lock();
  bool claimed = claim(share);
  aq_slot_unlock();
  errno = saved;
  return claimed;
}

struct aq_slot *aq_slot_renew(struct aq_share *share) {
  if (!__atomic_load_n(&share->slot, __ATOMIC_ACQUIRE))
    return NULL; /* never had one: cuInit was refused, or this is a reader of NVML */
  return aq_slot_claim(share) ? __atomic_load_n(&share->slot, __ATOMIC_ACQUIRE) : NULL;
}

void aq_slot_sweep(struct aq_share *share) {
  int saved = errno;
  aq_slot_lock();
  if (keep_descriptor(share))
    sweep(share);
  if (holds_slot(share))
    restore(share);
  aq_slot_unlock();
  errno = saved;
}
