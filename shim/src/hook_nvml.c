/* SPDX-License-Identifier: Apache-2.0
 *
 * What NVML says: the share's memory and the share's own processes.
 */
#include "books.h"
#include "hooks.h"
#include "identity.h"
#include "nvml_share.h"
#include "slot.h"
#include "state.h"

#define NO_INSTANCE 0xFFFFFFFFU /* the instance ids of a GPU that is not partitioned */

/* Maps the shares; takes no slot, as a reader holds no memory. */
static bool may_start(void) {
  if (aq_depth > 0)
    return true;
  aq_nvml_share_reset();
  return aq_attach();
}

nvmlReturn_t nvmlInit(void) {
  if (!AQ_REAL(nvmlInit))
    return NVML_ERROR_LIBRARY_NOT_FOUND;
  return may_start() ? AQ_REAL(nvmlInit)() : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlInit_v2(void) {
  if (!AQ_REAL(nvmlInit_v2))
    return NVML_ERROR_LIBRARY_NOT_FOUND;
  return may_start() ? AQ_REAL(nvmlInit_v2)() : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  if (!AQ_REAL(nvmlInitWithFlags))
    return NVML_ERROR_LIBRARY_NOT_FOUND;
  return may_start() ? AQ_REAL(nvmlInitWithFlags)(flags) : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  nvmlMemory_t now;
  if (!AQ_REAL(nvmlDeviceGetMemoryInfo))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !memory)
    return AQ_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetMemoryInfo)(device, &now);
  if (result != NVML_SUCCESS)
    return result;
  struct aq_share *share = aq_nvml_share(device);
  if (!share)
    return NVML_ERROR_NO_PERMISSION;
  if (aq_share_is_limited(share)) {
    struct aq_view view = aq_view(share, now.total, now.free);
    now.total = view.total;
    now.free = view.free;
    now.used = view.used;
  }
  *memory = now;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  nvmlMemory_v2_t now;
  if (!AQ_REAL(nvmlDeviceGetMemoryInfo_v2))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !memory)
    return AQ_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
  now = *memory; /* holds the version that the caller asks for */
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetMemoryInfo_v2)(device, &now);
  if (result != NVML_SUCCESS)
    return result;
  struct aq_share *share = aq_nvml_share(device);
  if (!share)
    return NVML_ERROR_NO_PERMISSION;
  if (aq_share_is_limited(share)) {
    struct aq_view view = aq_view(share, now.total, now.free);
    now.total = view.total;
    now.free = view.free;
    now.used = view.used;
    now.reserved = 0; /* the driver's, not the share's */
  }
  *memory = now;
  return NVML_SUCCESS;
}

struct process {
  unsigned int pid;
  unsigned long long bytes;
};

/* The next process of the share that the reader's pid namespace can name. */
static bool next_process(const struct aq_share *share, uint64_t pidns, unsigned *index,
                         struct process *process) {
  uint64_t estimate = aq_word(&share->quota->context_estimate_bytes);
  uint64_t used = aq_word(&share->ledger->slots_used);
  for (; *index < used && *index < AQ_SLOTS; (*index)++) {
    const struct aq_slot *slot = &share->ledger->slot[*index];
    uint64_t pid = aq_word(&slot->pid);
    if (!pid || !aq_word(&slot->contexts) || aq_word(&slot->pidns_inode) != pidns)
      continue;
    *process = (struct process){(unsigned int)pid, aq_slot_charge(slot, estimate)};
    (*index)++;
    return true;
  }
  return false;
}

/* What stays of the driver's own answer: its errors. `detailed` entries are those of _v2, _v3. */
static nvmlReturn_t list(struct aq_share *share, unsigned int *count, void *infos, bool detailed) {
  struct aq_identity self;
  struct process process;
  unsigned int room = infos ? *count : 0;
  unsigned int found = 0;
  aq_identity_self(&self);
  aq_view(share, 0, 0); /* the dead are swept */
  for (unsigned index = 0; next_process(share, self.pidns_inode, &index, &process); found++) {
    if (found >= room)
      continue;
    if (detailed)
      ((nvmlProcessInfo_t *)infos)[found] =
          (nvmlProcessInfo_t){process.pid, process.bytes, NO_INSTANCE, NO_INSTANCE};
    else
      ((nvmlProcessInfo_v1_t *)infos)[found] = (nvmlProcessInfo_v1_t){process.pid, process.bytes};
  }
  *count = found;
  return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* NVML_SUCCESS: the list is ours to make, for `*share`. */
static nvmlReturn_t may_list(nvmlReturn_t asked, nvmlDevice_t device, struct aq_share **share) {
  if (asked != NVML_SUCCESS && asked != NVML_ERROR_INSUFFICIENT_SIZE)
    return asked;
  *share = aq_nvml_share(device);
  return *share ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos) {
  struct aq_share *share;
  unsigned int none = 0;
  if (!AQ_REAL(nvmlDeviceGetComputeRunningProcesses))
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !count)
    return AQ_REAL(nvmlDeviceGetComputeRunningProcesses)(device, count, infos);
  nvmlReturn_t asked = AQ_REAL(nvmlDeviceGetComputeRunningProcesses)(device, &none, NULL);
  nvmlReturn_t result = may_list(asked, device, &share);
  return result == NVML_SUCCESS ? list(share, count, infos, false) : result;
}

typedef nvmlReturn_t (*list_processes)(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);

/* The second and third ABI have the same entries. */
static nvmlReturn_t list_wide(list_processes real, nvmlDevice_t device, unsigned int *count,
                              nvmlProcessInfo_t *infos) {
  struct aq_share *share;
  unsigned int none = 0;
  if (!real)
    return NVML_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || !count)
    return real(device, count, infos);
  nvmlReturn_t result = may_list(real(device, &none, NULL), device, &share);
  return result == NVML_SUCCESS ? list(share, count, infos, true) : result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
  return list_wide(AQ_REAL(nvmlDeviceGetComputeRunningProcesses_v2), device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
  return list_wide(AQ_REAL(nvmlDeviceGetComputeRunningProcesses_v3), device, count, infos);
}
