/* SPDX-License-Identifier: Apache-2.0 */
#include "sight.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "mig.h"

bool sight_allows(const char *root, const char *uuid) {
  char path[4096];
  bool others = false;
  int length = snprintf(path, sizeof path, "%s/dev/%s", root, uuid);
  if (length < 0 || (size_t)length >= sizeof path || access(path, F_OK) == 0) {
    return true;
  }
  path[length - (int)strlen(uuid)] = '\0';
  DIR *folder = opendir(path);
  for (const struct dirent *entry; folder && !others && (entry = readdir(folder));) {
    others = strncmp(entry->d_name, "MIG-", 4) == 0;
  }
  if (folder) {
    closedir(folder);
  }
  return !others;
}

/* The first MIG device of a GPU that may be used; of a name, the one that it means. 0: none. */
static uint32_t part_of(const struct sim_state *state, const char *root, uint32_t gpu, const char *name,
                        size_t length) {
  struct mig_compute computes[SIM_SLICES];
  unsigned count = mig_computes(mig_word(state, gpu), computes);
  for (unsigned i = 0; i < count; i++) {
    char uuid[SIM_UUID_TEXT];
    char gpu_uuid[SIM_UUID_TEXT];
    char older[2 * SIM_UUID_TEXT]; /* as drivers before 470 named it, and later ones still take it */
    mig_uuid_text(&state->gpu[gpu], computes[i], uuid);
    node_uuid_text(&state->gpu[gpu], gpu_uuid);
    int size = snprintf(older, sizeof older, "MIG-%s/%u/%u", gpu_uuid, mig_instance_id(computes[i].in),
                        mig_compute_id(computes[i]));
    bool meant = !name || (length == strlen(uuid) && strncasecmp(uuid, name, length) == 0) ||
                 (length == (size_t)size && strncasecmp(older, name, length) == 0);
    if (meant && sight_allows(root, uuid)) {
      return mig_part(gpu, computes[i]);
    }
  }
  return 0;
}

/* Position in the sight that one entry of the list means, or -1: an ordinal, or the beginning of one UUID. */
static int resolve(const struct sim_state *state, const char *entry, size_t length,
                   const struct sight *sight) {
  int found = -1;
  if (length > 4 && strncasecmp(entry, "GPU-", 4) == 0) {
    for (unsigned i = 0; i < sight->count; i++) {
      char uuid[SIM_UUID_TEXT];
      node_uuid_text(&state->gpu[sight->gpus[i]], uuid);
      if (length < sizeof uuid && strncasecmp(uuid, entry, length) == 0) {
        if (found >= 0) {
          return -1; /* the beginning of several */
        }
        found = (int)i;
      }
    }
    return found;
  }
  unsigned ordinal = 0;
  for (size_t i = 0; i < length; i++) {
    if (!isdigit((unsigned char)entry[i]) || ordinal >= SIM_GPUS) {
      return -1;
    }
    ordinal = ordinal * 10 + (unsigned)(entry[i] - '0');
  }
  return length > 0 && ordinal < sight->count ? (int)ordinal : -1;
}

/* The position of an entry, as above; or of the GPU of the MIG device that it names, which is `part` then. */
static int find(const struct sim_state *state, const char *root, const char *entry, size_t length,
                const struct sight *sight, uint32_t *part) {
  if (length <= 4 || strncasecmp(entry, "MIG-", 4) != 0) {
    return resolve(state, entry, length, sight);
  }
  for (unsigned i = 0; i < sight->count; i++) {
    *part = part_of(state, root, sight->gpus[i], entry, length);
    if (*part != 0) {
      return (int)i;
    }
  }
  return -1;
}

static struct sight narrowed(const struct sim_state *state, const char *root, const char *setting,
                             const struct sight *all) {
  struct sight chosen = {.count = 0};
  bool taken[SIM_GPUS] = {false};
  for (const char *entry = setting; *entry && chosen.part == 0;) {
    entry += strspn(entry, " ");
    size_t length = strcspn(entry, ", ");
    uint32_t part = 0;
    int position = find(state, root, entry, length, all, &part);
    /* An invalid entry hides itself and all that follow (CUDA programming guide, "CUDA_VISIBLE_DEVICES"). */
    if (position < 0 || taken[position]) {
      break;
    }
    taken[position] = true;
    chosen.gpus[chosen.count++] = all->gpus[position];
    chosen.part = part;
    entry += length;
    entry += strspn(entry, " ");
    entry += *entry == ',';
  }
  return chosen;
}

struct sight sight_take(const struct sim_state *state, const char *root, const char *setting) {
  struct sight all = {.count = 0};
  struct sight whole = {.count = 0};
  all.count = node_present(state, root, all.gpus);
  if (setting) {
    all = narrowed(state, root, setting, &all);
  }
  for (unsigned i = 0; i < all.count && all.part == 0; i++) {
    all.part = part_of(state, root, all.gpus[i], NULL, 0);
  }
  if (all.part != 0) {
    return (struct sight){.gpus = {mig_part_gpu(all.part)}, .count = 1, .part = all.part};
  }
  for (unsigned i = 0; i < all.count; i++) {
    if (!mig_is_on(mig_word(state, all.gpus[i]))) {
      whole.gpus[whole.count++] = all.gpus[i];
    }
  }
  return whole;
}
