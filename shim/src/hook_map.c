/* SPDX-License-Identifier: Apache-2.0
 *
 * Two small open hash tables, filled once and read without a lock: addresses of hooked driver
 * functions, and base names (cuMemAlloc for cuMemAlloc_v2) of all hooks.
 */
#include "hook_map.h"

#include <stdint.h>
#include <string.h>

#include "driver.h"

enum { PLACES = 2048, NAME_PLACES = 1024 };

_Static_assert(AQ_COUNT * 2 < NAME_PLACES, "hash tables stay half empty, addresses learned included");

static struct {
  const void *address;
  void *hook;
} places[PLACES];

static const char *names[NAME_PLACES];
static bool names_ready;

static uint32_t address_place(const void *address) {
  return (uint32_t)(((uintptr_t)address >> 4) * 2654435761U) % PLACES;
}

/* Length of `name` without _ptsz, _ptds and _vN. */
static size_t base_length(const char *name) {
  size_t length = strlen(name);
  if (length > 5 && (!strcmp(name + length - 5, "_ptsz") || !strcmp(name + length - 5, "_ptds")))
    length -= 5;
  if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v' && name[length - 1] >= '0' &&
      name[length - 1] <= '9')
    length -= 3;
  return length;
}

static uint32_t name_place(const char *name, size_t length) {
  uint32_t hash = (uint32_t)length;
  for (size_t i = 2; i < length; i++) /* all start with "cu" */
    hash = hash * 31 + (unsigned char)name[i];
  return hash * 2654435761U >> 16;
}

static void fill_names(void) {
  for (int id = 0; id < AQ_COUNT; id++) {
    const struct aq_entry entry = aq_entry(id);
    if (!entry.hook)
      continue;
    uint32_t place = name_place(entry.name, base_length(entry.name)) % NAME_PLACES;
    while (names[place])
      place = (place + 1) % NAME_PLACES;
    names[place] = entry.name;
  }
  __atomic_store_n(&names_ready, true, __ATOMIC_RELEASE);
}

void aq_hook_map_add(const void *address, void *hook) {
  if (!names_ready)
    fill_names();
  uint32_t place = address_place(address);
  while (places[place].hook && places[place].address != address)
    place = (place + 1) % PLACES;
  places[place].address = address;
  __atomic_store_n(&places[place].hook, hook, __ATOMIC_RELEASE);
}

void *aq_hook_of(const void *address) {
  uint32_t place = address_place(address);
  for (;; place = (place + 1) % PLACES) {
    void *hook = __atomic_load_n(&places[place].hook, __ATOMIC_ACQUIRE);
    if (!hook || places[place].address == address)
      return hook;
  }
}

bool aq_base_is_hooked(const char *name) {
  if (!__atomic_load_n(&names_ready, __ATOMIC_ACQUIRE))
    return false;
  size_t length = strlen(name);
  for (uint32_t place = name_place(name, length) % NAME_PLACES; names[place];
       place = (place + 1) % NAME_PLACES)
    if (!strncmp(names[place], name, length) && base_length(names[place]) == length)
      return true;
  return false;
}
