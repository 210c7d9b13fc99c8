/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles are looked up once by UUID and remembered in a table. Its lock is never held across a
 * call of NVML.
 */
#include "nvml_share.h"

#include <pthread.h>
#include <string.h>

#include "hooks.h"
#include "state.h"

enum { PLACES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t known_count;
static struct {
  nvmlDevice_t device;
  struct aq_share *share;
} known[PLACES];

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

/* Under the lock. */
static struct aq_share *find(nvmlDevice_t device) {
  for (size_t i = 0; i < known_count; i++)
    if (known[i].device == device)
      return known[i].share;
  return NULL;
}

static struct aq_share *remembered(nvmlDevice_t device) {
  pthread_mutex_lock(&lock);
  struct aq_share *share = find(device);
  pthread_mutex_unlock(&lock);
  return share;
}

static void remember(nvmlDevice_t device, struct aq_share *share) {
  pthread_mutex_lock(&lock);
  if (known_count < PLACES && !find(device)) {
    known[known_count].device = device;
    known[known_count].share = share;
    known_count++;
  }
  pthread_mutex_unlock(&lock);
}

struct aq_share *aq_nvml_share(nvmlDevice_t device) {
  struct aq_share *share = remembered(device);
  if (share || !aq_attach()) /* a forked child has let go of all shares */
    return share;
  share = ask(device);
  if (share)
    remember(device, share);
  return share;
}

void aq_nvml_share_reset(void) {
  pthread_mutex_lock(&lock);
  known_count = 0;
  pthread_mutex_unlock(&lock);
}

void aq_nvml_share_reset_in_child(void) {
  known_count = 0;
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
