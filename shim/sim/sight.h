/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a node's GPUs CUDA shows to a process: what its folder lets it see,
 * narrowed by CUDA_VISIBLE_DEVICES.
 *
 * With MIG (user guide, "CUDA Device Enumeration"): one MIG device at most, the
 * first one visible; and where there is one, no whole GPU.
 */
#ifndef SIM_SIGHT_H
#define SIM_SIGHT_H

#include "node.h"

struct sight {
  unsigned gpus[SIM_GPUS]; /* by ordinal */
  unsigned count;
  uint32_t part; /* the MIG device; 0: whole GPUs */
};

/* `setting`: CUDA_VISIBLE_DEVICES, or NULL. */
struct sight sight_take(const struct sim_state *state, const char *root, const char *setting);

/* Whether the folder lets a process use a MIG device: it does, unless it has markers of others. */
bool sight_allows(const char *root, const char *uuid);

#endif
