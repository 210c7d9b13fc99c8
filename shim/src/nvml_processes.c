/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML speaks of host pids, or of those of the caller's namespace: which, differs, and is found out by
 * looking for our own processes in its list. Where neither is sure a process goes without a name: rather
 * no figures of it than a neighbour's.
 */
#include "nvml_processes.h"

#include <string.h>
#include <sys/mman.h>

#include "books.h"
#include "hooks.h"
#include "identity.h"
#include "slot.h"
#include "sums.h"

/* Inode of the first pid namespace (PROC_PID_INIT_INO of the kernel), where all pids are host pids. */
#define FIRST_PIDNS 0xEFFFFFFCU

enum { MOST_LISTED = 4096 };

void aq_processes_read(struct aq_share *share, struct aq_processes *all) {
  struct aq_identity self;
  uint64_t estimate = aq_word(&share->quota->context_estimate_bytes);
  aq_identity_self(&self);
  aq_view(share, 0, 0); /* the dead are swept */
  uint64_t used = aq_word(&share->ledger->slots_used);
  all->count = 0;
  for (unsigned index = 0; index < used && index < AQ_SLOTS; index++) {
    const struct aq_slot *slot = &share->ledger->slot[index];
    uint64_t pid = aq_word(&slot->pid);
    if (!pid || !aq_word(&slot->contexts) || aq_word(&slot->pidns_inode) != self.pidns_inode)
      continue;
    /* Until NVML was asked, `named` is the host pid as the agent found it. */
    uint64_t host_pid = self.pidns_inode == FIRST_PIDNS ? pid : aq_word(&slot->host_pid);
    all->of[all->count++] =
        (struct aq_process){(unsigned)pid, (unsigned)host_pid, aq_charge_of(slot, estimate)};
  }
}

static bool is_listed(const nvmlProcessInfo_t *listed, unsigned count, unsigned pid) {
  for (unsigned i = 0; pid && i < count; i++)
    if (listed[i].pid == pid)
      return true;
  return false;
}

void aq_processes_name(nvmlDevice_t device, struct aq_processes *all) {
  unsigned count = MOST_LISTED;
  size_t size = count * sizeof(nvmlProcessInfo_t);
  nvmlProcessInfo_t *listed = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  __typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *list =
      AQ_REAL(nvmlDeviceGetComputeRunningProcesses_v3);
  if (!list)
    list = AQ_REAL(nvmlDeviceGetComputeRunningProcesses_v2);
  if (listed == MAP_FAILED || !list || list(device, &count, listed) != NVML_SUCCESS)
    count = 0;
  bool host_pids = false;
  for (unsigned i = 0; i < all->count; i++)
    host_pids |= is_listed(listed, count, all->of[i].named);
  for (unsigned i = 0; i < all->count; i++) {
    struct aq_process *process = &all->of[i];
    unsigned named = host_pids ? process->named : process->pid;
    process->named = process->named && is_listed(listed, count, named) ? named : 0;
  }
  if (listed != MAP_FAILED)
    munmap(listed, size);
}

const struct aq_process *aq_process_named(const struct aq_processes *all, unsigned named) {
  for (unsigned i = 0; named && i < all->count; i++)
    if (all->of[i].named == named)
      return &all->of[i];
  return NULL;
}

const struct aq_process *aq_process_of(const struct aq_processes *all, unsigned pid) {
  for (unsigned i = 0; pid && i < all->count; i++)
    if (all->of[i].pid == pid)
      return &all->of[i];
  return NULL;
}

unsigned aq_processes_keep(const struct aq_processes *all, void *entries, unsigned count, size_t size,
                           size_t offset) {
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    char *entry = (char *)entries + i * size;
    unsigned named;
    memcpy(&named, entry + offset, sizeof(named));
    const struct aq_process *process = aq_process_named(all, named);
    if (!process)
      continue;
    char *to = (char *)entries + kept++ * size;
    memmove(to, entry, size);
    memcpy(to + offset, &process->pid, sizeof(process->pid));
  }
  return kept;
}
