/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of GPU instances, for the calls about compute instances, too.
 */
#ifndef SIM_NVML_INSTANCES_H
#define SIM_NVML_INSTANCES_H

#include "nvml_sim.h"

/* One per place; it means the instance of this kind there, if there is one. */
struct nvmlGpuInstance_st {
  uint32_t gpu;
  struct mig_instance is;
};

/* Ready for a call about the instance behind the handle, which is looked up. */
nvmlReturn_t nvml_ready_for_instance(nvmlGpuInstance_t handle, const void *output, bool privileged,
                                     const struct mig_card **card);

#endif
