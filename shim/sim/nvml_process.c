/* SPDX-License-Identifier: Apache-2.0
 *
 * Which processes use a GPU, by their pids in the caller's namespace.
 */
#include "nvml_sim.h"
#include "slots.h"

/* Entries of the first ABI have 16 bytes, all later ones 24. */
enum entry_kind { ENTRY_V1, ENTRY_V2 };

static void put(void *infos, enum entry_kind kind, unsigned index, unsigned pid, uint64_t used,
                uint32_t part) {
  if (kind == ENTRY_V1) {
    ((nvmlProcessInfo_v1_t *)infos)[index] = (nvmlProcessInfo_v1_t){.pid = pid, .usedGpuMemory = used};
    return;
  }
  nvmlProcessInfo_v2_t *info = &((nvmlProcessInfo_v2_t *)infos)[index];
  *info = (nvmlProcessInfo_v2_t){.pid = pid, .usedGpuMemory = used};
  nvml_instances_of(part, &info->gpuInstanceId, &info->computeInstanceId);
}

/* Put the first `room` processes with a context on the GPU (of a MIG device: in it) into `infos`; returns how
 * many there are.
 * Those that cannot be seen from the caller's pid namespace have no pid here, and are left out. */
static unsigned list(nvmlDevice_t device, enum entry_kind kind, void *infos, unsigned room) {
  uint32_t gpu = device->gpu;
  uint32_t wanted = nvml_part(device);
  const struct node *node = &nvml_sim.node;
  unsigned count = 0;
  uint32_t last = atomic_load(&node->state->slots_used);
  for (uint32_t number = 1; number <= last; number++) {
    const struct sim_slot *slot = &node->state->slot[number];
    uint32_t part = atomic_load(&slot->part);
    bool uses = (atomic_load(&slot->life) & 1) && atomic_load(&slot->holding[gpu].contexts) > 0 &&
                (wanted == 0 || wanted == part);
    unsigned pid = uses ? slots_pid(node, number) : 0;
    if (pid == 0) {
      continue;
    }
    if (count < room) {
      put(infos, kind, count, pid, slots_held(node, number, gpu, SIM_PHYSICAL), part);
    }
    count++;
  }
  return count;
}

/* *infoCount: in, the room; out, how many there are. Too little room is INSUFFICIENT_SIZE; asking with
 * no room at all is how callers learn the number. */
static nvmlReturn_t compute(nvmlDevice_t device, unsigned *infoCount, enum entry_kind kind, void *infos) {
  nvmlReturn_t result = nvml_ready_for_any(device, infoCount);
  if (result != NVML_SUCCESS) {
    return result;
  }
  unsigned room = *infoCount;
  if (room > 0 && !infos) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  slots_sweep(&nvml_sim.node, device->gpu, SIM_ANY, 0);
  unsigned count = list(device, kind, NULL, 0);
  if (count <= room) {
    count = list(device, kind, infos, room); /* one more may have started meanwhile */
  }
  *infoCount = count;
  return count <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* Nothing draws, and there is no MPS. */
static nvmlReturn_t none(nvmlDevice_t device, unsigned *infoCount) {
  nvmlReturn_t result = nvml_ready_for_any(device, infoCount);
  if (result == NVML_SUCCESS) {
    *infoCount = 0;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                  nvmlProcessInfo_v1_t *infos) {
  return compute(device, infoCount, ENTRY_V1, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_v2_t *infos) {
  return compute(device, infoCount, ENTRY_V2, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_t *infos) {
  return compute(device, infoCount, ENTRY_V2, infos);
}

#define NONE(NAME, ENTRY)                                                                                    \
  nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *infoCount, ENTRY *infos) {                            \
    return (void)infos, none(device, infoCount);                                                             \
  }

NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
