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

#include "mig.h"
#include "profiles.h"

/* A GPU whose marker is visible, or a MIG device. Handles point here. */
struct nvmlDevice_st {
  unsigned index; /* of a GPU */
  uint32_t gpu;   /* in the state */
  bool is_mig;
  unsigned
      slice; /* of a MIG device: its first compute slice; what begins there now is what the handle means */
};

extern struct nvml_sim {
  struct node node;
  unsigned devices;
  struct nvmlDevice_st device[SIM_GPUS];
  struct nvmlDevice_st mig[SIM_GPUS][SIM_SLICES];
} nvml_sim;

/* NVML_SUCCESS while initialised; changes nothing. */
nvmlReturn_t nvml_ready(void);

/* The same for calls about a device that write to `output`; GPU_IS_LOST if it fell off the bus. */
nvmlReturn_t nvml_ready_for(nvmlDevice_t device, const void *output);

/* The same for calls that also take a MIG device; `nvml_ready_for` answers NOT_SUPPORTED for one. */
nvmlReturn_t nvml_ready_for_any(nvmlDevice_t device, const void *output);

/* The same for what NVML does not tell of a GPU in MIG mode (nvml.h, notes of each call): NOT_SUPPORTED. */
nvmlReturn_t nvml_ready_unless_mig(nvmlDevice_t device, const void *output);

/* What a handle of a MIG device means; false: a GPU's, or its compute instance is gone. */
bool nvml_compute_of(nvmlDevice_t device, struct mig_compute *compute);

/* Its part (mig.h); 0: a GPU. */
uint32_t nvml_part(nvmlDevice_t device);

/* This process's handle of a GPU; NULL if it cannot be seen from here. */
nvmlDevice_t nvml_handle(uint32_t gpu);

/* Handles of a GPU's MIG devices, in their order; returns how many there are. */
unsigned nvml_mig_devices(nvmlDevice_t device, nvmlDevice_t devices[SIM_SLICES]);

/* A process's instances as NVML tells them, or NO_INSTANCE twice. */
#define NO_INSTANCE 0xffffffffU
void nvml_instances_of(uint32_t part, unsigned *gpu_instance, unsigned *compute_instance);

/* Answers of mig.h. */
nvmlReturn_t nvml_mig_result(enum mig_answer answer);

/* Ready for a call about instances: `card` is what the GPU can be made of. `privileged`: only for root. */
nvmlReturn_t nvml_ready_for_instances(nvmlDevice_t device, const void *output, bool privileged,
                                      const struct mig_card **card);

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
