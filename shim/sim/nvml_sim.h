/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the simulated libnvidia-ml share.
 */
#ifndef SIM_NVML_SIM_H
#define SIM_NVML_SIM_H

/* All ABIs by their exported names; what the header declares is exported. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "node.h"
#include "profiles.h"

/* A GPU whose marker is visible. Handles point here. */
struct nvmlDevice_st {
  unsigned index;
  uint32_t gpu; /* in the state */
};

extern struct nvml_sim {
  struct node node;
  unsigned devices;
  struct nvmlDevice_st device[SIM_GPUS];
} nvml_sim;

/* NVML_SUCCESS while initialised; changes nothing. */
nvmlReturn_t nvml_ready(void);

/* The same for calls about a device that write to `output`; GPU_IS_LOST if it fell off the bus. */
nvmlReturn_t nvml_ready_for(nvmlDevice_t device, const void *output);

struct sim_gpu *nvml_gpu(nvmlDevice_t device);
const struct sim_profile *nvml_profile(nvmlDevice_t device);

const struct sim_driver *nvml_driver(void);

/* Percent of the last period, as NVML would tell it, in which a slot (or anybody: slot 0) used the GPU. */
unsigned nvml_utilization(uint32_t gpu, uint32_t slot);

/* CLOCK_MONOTONIC. */
uint64_t nvml_milliseconds(void);

/* Copy text into a caller's buffer; INSUFFICIENT_SIZE if it does not fit. */
nvmlReturn_t nvml_text(const char *text, char *buffer, unsigned length);

#endif
