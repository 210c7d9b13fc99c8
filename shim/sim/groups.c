/* SPDX-License-Identifier: Apache-2.0 */
#include "groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fcntl.h>

#include "meter.h"
#include "slots.h"

#define CLOSING 1ULL /* bit of a key: the group is being emptied */

/* Linux 6.11: a number of the mount namespace that is never given out again, unlike its inode. */
#define GET_MNTNS_ID _IOR(0xb7, 0x5, uint64_t)

static void group_name(char name[SIM_NAME]) {
  const char *given = getenv(SIM_GROUP_ENV);
  if (given && *given) {
    snprintf(name, SIM_NAME, "%.*s", (int)SIM_NAME - 1, given);
    return;
  }
  struct stat ns = {0};
  uint64_t id = 0;
  int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    fstat(fd, &ns);
    if (ioctl(fd, GET_MNTNS_ID, &id) != 0) {
      id = 0;
    }
    close(fd);
  }
  int length =
      snprintf(name, SIM_NAME, "%llu:%llu", (unsigned long long)ns.st_dev, (unsigned long long)ns.st_ino);
  if (id != 0) {
    snprintf(name + length, SIM_NAME - (size_t)length, ":%llu", (unsigned long long)id);
  }
}

static uint64_t key_of(const char *name) {
  uint64_t hash = 0xcbf29ce484222325ULL; /* FNV-1a */
  for (; *name; name++) {
    hash = (hash ^ (uint8_t)*name) * 0x100000001b3ULL;
  }
  hash &= ~CLOSING;
  return hash ? hash : 2;
}

/* The group with this key, else a free one that now has it, else 0. */
static uint32_t find_or_take(struct sim_state *state, uint64_t key) {
  for (uint32_t group = 1; group < SIM_GROUPS; group++) {
    if (atomic_load(&state->group[group].key) == key) {
      return group;
    }
  }
  for (uint32_t group = 1; group < SIM_GROUPS; group++) {
    uint64_t seen = 0;
    if (atomic_compare_exchange_strong(&state->group[group].key, &seen, key) || seen == key) {
      return group;
    }
  }
  return 0;
}

static bool in_use(const struct sim_state *state, uint32_t group) {
  uint32_t last = atomic_load(&state->slots_used);
  for (uint32_t slot = 1; slot <= last; slot++) {
    const struct sim_slot *member = &state->slot[slot];
    if ((atomic_load(&member->life) & 1) && atomic_load(&member->group) == group) {
      return true;
    }
  }
  return false;
}

static void forget(struct sim_state *state, uint32_t number) {
  struct sim_group *group = &state->group[number];
  uint64_t key = atomic_load(&group->key);
  uint64_t closing = key | CLOSING;
  if (key == 0 || in_use(state, number)) {
    return;
  }
  /* Who joins writes its slot first and then looks at the key again: one of the two sees the other. */
  if (key != closing && !atomic_compare_exchange_strong(&group->key, &key, closing)) {
    return;
  }
  if (in_use(state, number)) {
    atomic_compare_exchange_strong(&group->key, &closing, closing & ~CLOSING);
    return;
  }
  for (uint32_t gpu = 0; gpu < state->gpus && atomic_load(&group->key) == closing; gpu++) {
    meter_clear(&group->gpu[gpu].measure[SIM_PHYSICAL]);
    meter_clear(&group->gpu[gpu].measure[SIM_REQUESTED]);
  }
  group->name[0] = group->host[0] = '\0';
  atomic_compare_exchange_strong(&group->key, &closing, 0);
}

void groups_forget_unused(const struct node *node) {
  slots_sweep(node, SIM_ANY, SIM_ANY, 0);
  for (uint32_t group = 1; group < SIM_GROUPS; group++) {
    forget(node->state, group);
  }
}

bool groups_join(const struct node *node, uint32_t slot) {
  struct sim_state *state = node->state;
  char name[SIM_NAME];
  group_name(name);
  uint64_t key = key_of(name);
  bool swept = false;
  for (;;) {
    uint32_t number = find_or_take(state, key);
    if (number == 0) {
      if (swept) {
        return false;
      }
      groups_forget_unused(node);
      swept = true;
      continue;
    }
    struct sim_group *group = &state->group[number];
    atomic_store(&state->slot[slot].group, number);
    if (atomic_load(&group->key) == key) {
      /* All processes of a group write the same name; the host name is the first one's. */
      memcpy(group->name, name, SIM_NAME);
      if (group->host[0] == '\0') {
        gethostname(group->host, SIM_NAME - 1);
      }
      return true;
    }
    atomic_store(&state->slot[slot].group, 0);
  }
}
