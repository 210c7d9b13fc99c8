/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: quota and ledger that hold anything, and what the books make of them.
 *
 * Input: a byte of choice, then either the bytes of both files, or words of slots that others wrote, with
 * requests for memory. Whatever stands there, nothing is granted past the limit.
 */
#include "../../src/share.c"

#include <time.h>

#include "books.h"
#include "fuzz.h"
#include "records.h"
#include "slot.h"

enum { OTHERS = 24, STEPS = 24, MOST_BYTES = 40 };

struct aq_share aq_shares[AQ_MAX_SHARES];

static struct aq_quota quota;

/* In place of libc's: nobody else will step back. */
int nanosleep(const struct timespec *wanted, struct timespec *left) {
  (void)wanted;
  (void)left;
  return 0;
}

static void check_files(const uint8_t *data, size_t size) {
  struct aq_ledger *ledger = calloc(1, sizeof(*ledger));
  struct aq_quota page = {0};
  if (!ledger)
    abort();
  memcpy(&page, data, size < sizeof(page) ? size : sizeof(page));
  memcpy(ledger, data, size < sizeof(*ledger) ? size : sizeof(*ledger));
  quota_fault(&page);
  ledger_fault(ledger);
  free(ledger);
}

/* A share with an empty ledger, made once. */
static struct aq_share *share_of(void) {
  struct aq_share *share = &aq_shares[0];
  struct stat status;
  if (!share->ledger) {
    share->fd = memfd_create("ledger", MFD_CLOEXEC);
    if (share->fd < 0 || ftruncate(share->fd, AQ_LEDGER_SIZE) != 0 || fstat(share->fd, &status) != 0)
      abort();
    share->ledger = mmap(NULL, AQ_LEDGER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, share->fd, 0);
    if (share->ledger == MAP_FAILED)
      abort();
    share->device = status.st_dev;
    share->inode = status.st_ino;
    share->quota = &quota;
  }
  share->slot = NULL;
  share->contexts = 0;
  share->swept_ns = 0;
  return share;
}

/* Independent of books.c: what all slots together count, UINT64_MAX if past all reason. */
static uint64_t counted(const struct aq_share *share) {
  unsigned __int128 sum = 0;
  for (unsigned i = 0; i < share->ledger->slots_used && i < AQ_SLOTS; i++) {
    const struct aq_slot *slot = &share->ledger->slot[i];
    unsigned __int128 contexts = slot->contexts;
    sum += slot->used_bytes;
    if (slot->overhead_bytes != AQ_OVERHEAD_UNKNOWN) {
      sum += slot->overhead_bytes;
      contexts = contexts > slot->measured_contexts ? contexts - slot->measured_contexts : 0;
    }
    sum += contexts * quota.context_estimate_bytes;
  }
  if (sum < quota.floor_bytes)
    sum = quota.floor_bytes;
  return sum > UINT64_MAX ? UINT64_MAX : (uint64_t)sum;
}

static void granted(const struct aq_share *share) {
  if (counted(share) > quota.memory_limit_bytes)
    abort();
}

static uint64_t next_word(const uint8_t **data, size_t *size) {
  uint64_t word = 0;
  size_t taken = *size < sizeof(word) ? *size : sizeof(word);
  memcpy(&word, *data, taken);
  *data += taken;
  *size -= taken;
  return word;
}

static void step(struct aq_share *share, uint64_t word, struct aq_charge *charge, bool *held) {
  uint64_t bytes = (word >> 8) & ((1ULL << MOST_BYTES) - 1);
  struct aq_view view;
  switch (word % 5) {
  case 0:
    if (*held)
      aq_cancel(charge);
    *held = aq_reserve(share, bytes, charge);
    if (*held)
      granted(share);
    break;
  case 1:
    if (*held && aq_reserve_exactly(charge, bytes) && bytes > charge->bytes)
      granted(share);
    break;
  case 2:
    if (aq_context_reserve(share)) {
      granted(share);
      aq_context_cancel(share);
    }
    break;
  case 3:
    aq_slot_sweep(share);
    break;
  default:
    view = aq_view(share, UINT64_MAX, bytes);
    if (view.free > bytes || view.used > view.total)
      abort();
  }
}

static void run_books(const uint8_t *data, size_t size) {
  struct aq_share *share = share_of();
  struct aq_charge charge = {0};
  bool held = false;
  quota.memory_limit_bytes = next_word(&data, &size) & ((1ULL << MOST_BYTES) - 1);
  quota.context_estimate_bytes = next_word(&data, &size);
  quota.floor_bytes = next_word(&data, &size);
  memset(share->ledger, 0, (size_t)((uint8_t *)&share->ledger->slot[OTHERS + 2] - (uint8_t *)share->ledger));
  share->ledger->slots_used = next_word(&data, &size) % (AQ_SLOTS + 2);
  size_t slots = size / 2 / AQ_SLOT_SIZE < OTHERS ? size / 2 / AQ_SLOT_SIZE : OTHERS;
  memcpy(share->ledger->slot, data, slots * AQ_SLOT_SIZE);
  data += slots * AQ_SLOT_SIZE;
  size -= slots * AQ_SLOT_SIZE;
  if (!aq_slot_claim(share))
    return;
  for (int i = 0; i < STEPS && size > 0; i++)
    step(share, next_word(&data, &size), &charge, &held);
  if (held)
    aq_cancel(&charge);
  aq_records_reset();
  struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)AQ_SLOT_LOCK_BASE};
  fcntl(share->fd, F_OFD_SETLK, &all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0)
    return 0;
  if (data[0] % 4 == 0)
    check_files(data + 1, size - 1);
  else
    run_books(data + 1, size - 1);
  return 0;
}
