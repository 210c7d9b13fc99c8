/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles are looked up once by UUID and remembered in a table, which is read without a lock: a reader
 * that finds the version odd or changed asks again under the lock. This is never held across a call of NVML.
 * The first of them, in most programs the only one, stands with its share in one word.
 */
#include "nvml_share.h"

#include <pthread.h>
#include <string.h>

#include "hooks.h"
#include "state.h"

enum { PLACES = 64, SHARE_BITS = 16 };

struct place {
  nvmlDevice_t device;
  struct aq_share *share;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  _Alignas(64) uint64_t first; /* handle and number of its share, from 1; 0: none */
  uint64_t version;            /* odd while the table changes */
  size_t count;
  struct place known[PLACES];
} table;

static int digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The last 36 characters of GPU-… or MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx. */
static bool parse_uuid(const char *text, uint8_t uuid[16]) {
  size_t count = 0;
  if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
    return false;
  for (const char *c = text + 4; *c; c++) {
    if (*c == '-')
      continue;
    int high = digit(*c);
    int low = high < 0 ? -1 : digit(*++c);
    if (low < 0 || count == 16)
      return false;
    uuid[count++] = (uint8_t)(high << 4 | low);
  }
  return count == 16;
}

static struct aq_share *ask(nvmlDevice_t device) {
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
  uint8_t uuid[16];
  if (!AQ_REAL(nvmlDeviceGetUUID) || AQ_REAL(nvmlDeviceGetUUID)(device, text, sizeof(text)) != NVML_SUCCESS ||
      !parse_uuid(text, uuid))
    return NULL;
  return aq_share_of_uuid(uuid);
}

static struct aq_share *find(nvmlDevice_t device) {
  size_t count = __atomic_load_n(&table.count, __ATOMIC_ACQUIRE);
  for (size_t i = 0; i < count; i++)
    if (__atomic_load_n(&table.known[i].device, __ATOMIC_ACQUIRE) == device)
      return __atomic_load_n(&table.known[i].share, __ATOMIC_ACQUIRE);
  return NULL;
}

/* Under the lock, around each change; what changes is stored with release, and so seen after it. */
static void begin_change(void) {
  __atomic_store_n(&table.version, table.version + 1, __ATOMIC_RELAXED);
}

static void end_change(void) {
  __atomic_store_n(&table.version, table.version + 1, __ATOMIC_RELEASE);
}

AQ_RARE static struct aq_share *find_locked(nvmlDevice_t device) {
  pthread_mutex_lock(&lock);
  struct aq_share *share = find(device);
  pthread_mutex_unlock(&lock);
  return share;
}

static struct aq_share *remembered(nvmlDevice_t device) {
  uint64_t before = __atomic_load_n(&table.version, __ATOMIC_ACQUIRE);
  struct aq_share *share = find(device);
  if (before % 2 == 0 && __atomic_load_n(&table.version, __ATOMIC_RELAXED) == before)
    return share;
  return find_locked(device);
}

static uint64_t in_one_word(nvmlDevice_t device, const struct aq_share *share) {
  uint64_t handle = (uintptr_t)device;
  return handle << SHARE_BITS >> SHARE_BITS == handle ? handle << SHARE_BITS | (share->index + 1) : 0;
}

static void remember(nvmlDevice_t device, struct aq_share *share) {
  pthread_mutex_lock(&lock);
  if (table.count < PLACES && !find(device)) {
    begin_change();
    if (table.count == 0)
      __atomic_store_n(&table.first, in_one_word(device, share), __ATOMIC_RELEASE);
    __atomic_store_n(&table.known[table.count].device, device, __ATOMIC_RELEASE);
    __atomic_store_n(&table.known[table.count].share, share, __ATOMIC_RELEASE);
    __atomic_store_n(&table.count, table.count + 1, __ATOMIC_RELEASE);
    end_change();
  }
  pthread_mutex_unlock(&lock);
}

/* A forked child has let go of all shares. */
AQ_RARE static struct aq_share *ask_and_remember(nvmlDevice_t device) {
  struct aq_share *share = aq_attach() ? ask(device) : NULL;
  if (share)
    remember(device, share);
  return share;
}

struct aq_share *aq_nvml_share(nvmlDevice_t device) {
  uint64_t first = __atomic_load_n(&table.first, __ATOMIC_ACQUIRE);
  if (AQ_USUALLY(first && first >> SHARE_BITS == (uintptr_t)device))
    return &aq_shares[first % (1U << SHARE_BITS) - 1];
  struct aq_share *share = remembered(device);
  return share ? share : ask_and_remember(device);
}

void aq_nvml_share_reset(void) {
  pthread_mutex_lock(&lock);
  begin_change();
  __atomic_store_n(&table.first, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&table.count, 0, __ATOMIC_RELEASE);
  end_change();
  pthread_mutex_unlock(&lock);
}

void aq_nvml_share_reset_in_child(void) {
  table.first = table.count = 0;
  table.version = 0;
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
