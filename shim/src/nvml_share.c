/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles are looked up once by UUID and remembered in a table without a lock.
 */
#include "nvml_share.h"

#include <string.h>

#include "hooks.h"
#include "state.h"

enum { PLACES = 64 };

/* `share` is stored before `device`, which makes the entry valid; entries are only added. */
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

struct aq_share *aq_nvml_share(nvmlDevice_t device) {
  size_t start = ((uintptr_t)device >> 4) % PLACES;
  size_t place = start;
  do {
    nvmlDevice_t seen = __atomic_load_n(&known[place].device, __ATOMIC_ACQUIRE);
    if (seen == device)
      return __atomic_load_n(&known[place].share, __ATOMIC_RELAXED);
    if (!seen)
      break;
    place = (place + 1) % PLACES;
  } while (place != start);
  struct aq_share *share = ask(device);
  /* Two threads may write the same entry: only one GPU's handle is kept, the other asks again. */
  if (share && !known[place].device) {
    struct aq_share *none = NULL;
    if (__atomic_compare_exchange_n(&known[place].share, &none, share, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
      __atomic_store_n(&known[place].device, device, __ATOMIC_RELEASE);
  }
  return share;
}

void aq_nvml_share_reset(void) {
  for (size_t i = 0; i < PLACES; i++) {
    __atomic_store_n(&known[i].device, NULL, __ATOMIC_RELEASE);
    __atomic_store_n(&known[i].share, NULL, __ATOMIC_RELEASE);
  }
}
