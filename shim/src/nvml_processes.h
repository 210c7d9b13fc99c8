/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes of a share, by the pids of the reader's namespace and by those that NVML speaks of.
 */
#ifndef ALIQUOT_NVML_PROCESSES_H
#define ALIQUOT_NVML_PROCESSES_H

#include "nvml_abi.h"
#include "share.h"

/* One that holds a context and that the reader's pid namespace can name. */
struct aq_process {
  unsigned pid;
  unsigned named; /* what NVML calls it; 0: not known */
  uint64_t bytes;
};

struct aq_processes {
  unsigned count;
  struct aq_process of[AQ_SLOTS];
};

/* The live ones by the ledger, without `named`. */
void aq_processes_read(struct aq_share *share, struct aq_processes *all);

/* Finds out what NVML calls them on `device`. */
void aq_processes_name(nvmlDevice_t device, struct aq_processes *all);

/* The one that NVML calls `named`, or that has the reader's `pid`; NULL: none of the share's. */
const struct aq_process *aq_process_named(const struct aq_processes *all, unsigned named);
const struct aq_process *aq_process_of(const struct aq_processes *all, unsigned pid);

/* Of `count` entries of `size` bytes keeps those whose word at `offset` names a process of the share, and
 * writes the reader's pid there. How many stay. */
unsigned aq_processes_keep(const struct aq_processes *all, void *entries, unsigned count, size_t size,
                           size_t offset);

#endif
