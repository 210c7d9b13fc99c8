/* SPDX-License-Identifier: Apache-2.0
 *
 * The board: clocks, power, heat, links, memory windows. Figures follow from the profile and from how busy
 * the GPU is; their curves are made up.
 */
#include <string.h>
#include <unistd.h>

#include "nvml_sim.h"

#define IDLE_CLOCK_MHZ 345U
#define IDLE_CELSIUS   32U
#define SLOWDOWN       90U
#define SHUTDOWN       95U
#define MEMORY_MOST    85U

static bool is_throttled(nvmlDevice_t device) {
  return atomic_load(&nvml_gpu(device)->faults.throttled) != 0;
}

static unsigned sm_clock(nvmlDevice_t device) {
  unsigned most = nvml_profile(device)->clock_khz / 1000;
  if (nvml_utilization(device->gpu, 0) == 0) {
    return IDLE_CLOCK_MHZ;
  }
  return is_throttled(device) ? most / 3 : most;
}

static unsigned clock_of(nvmlDevice_t device, nvmlClockType_t type) {
  return type == NVML_CLOCK_MEM ? nvml_profile(device)->memory_clock_khz / 1000 : sm_clock(device);
}

static unsigned most_clock_of(nvmlDevice_t device, nvmlClockType_t type) {
  const struct sim_profile *profile = nvml_profile(device);
  return (type == NVML_CLOCK_MEM ? profile->memory_clock_khz : profile->clock_khz) / 1000;
}

/* A sixth when idle, all of it when busy. */
static unsigned milliwatts(nvmlDevice_t device) {
  unsigned most = nvml_profile(device)->watts * 1000;
  return most / 6 + (most - most / 6) / 100 * nvml_utilization(device->gpu, 0);
}

static unsigned celsius(nvmlDevice_t device) {
  return is_throttled(device) ? SLOWDOWN + 1 : IDLE_CELSIUS + nvml_utilization(device->gpu, 0) * 2 / 5;
}

#define NUMBER(NAME, TYPE, EXPRESSION)                                                                       \
  nvmlReturn_t NAME(nvmlDevice_t device, TYPE *output) {                                                     \
    nvmlReturn_t result = nvml_ready_for(device, output);                                                    \
    if (result == NVML_SUCCESS) {                                                                            \
      *output = (EXPRESSION);                                                                                \
    }                                                                                                        \
    return result;                                                                                           \
  }

NUMBER(nvmlDeviceGetPowerUsage, unsigned int, milliwatts(device))
NUMBER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, nvml_profile(device)->watts * 1000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, nvml_profile(device)->watts * 1000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, nvml_profile(device)->watts * 1000)
NUMBER(nvmlDeviceGetPerformanceState, nvmlPstates_t, NVML_PSTATE_0)
NUMBER(nvmlDeviceGetPowerState, nvmlPstates_t, NVML_PSTATE_0)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, nvml_profile(device)->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, nvml_profile(device)->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, nvml_profile(device)->bus_width_bits)
NUMBER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
NUMBER(nvmlDeviceGetBoardId, unsigned int, nvml_gpu(device)->pci_bus << 8)

/* As large as the memory, as cards for data centres have it. */
NUMBER(nvmlDeviceGetBAR1MemoryInfo, nvmlBAR1Memory_t,
       ((nvmlBAR1Memory_t){.bar1Total = (uint64_t)nvml_profile(device)->total_mib << 20,
                           .bar1Free = (uint64_t)(nvml_profile(device)->total_mib - 2) << 20,
                           .bar1Used = 2 << 20}))

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit,
                                                          unsigned int *maxLimit) {
  nvmlReturn_t result = nvml_ready_for(device, minLimit);
  if (result != NVML_SUCCESS || !maxLimit) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  *maxLimit = nvml_profile(device)->watts * 1000;
  *minLimit = *maxLimit / 2;
  return NVML_SUCCESS;
}

/* Since the node was made; in mJ. */
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *energy) {
  nvmlReturn_t result = nvml_ready_for(device, energy);
  if (result == NVML_SUCCESS) {
    uint64_t watts = nvml_profile(device)->watts;
    uint64_t busy_ms = atomic_load(&nvml_sim.node.state->schedule[device->gpu].busy_ever) / 1000000;
    *energy = watts / 6 * nvml_milliseconds() + (watts - watts / 6) * busy_ms;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType,
                                      unsigned int *temp) {
  nvmlReturn_t result = nvml_ready_for(device, temp);
  if (result != NVML_SUCCESS || sensorType != NVML_TEMPERATURE_GPU) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  *temp = celsius(device);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
  nvmlReturn_t result = nvml_ready_for(device, temperature);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (temperature->version != nvmlTemperature_v1) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  if (temperature->sensorType != NVML_TEMPERATURE_GPU) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  temperature->temperature = (int)celsius(device);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t thresholdType,
                                               unsigned int *temp) {
  static const unsigned thresholds[] = {[NVML_TEMPERATURE_THRESHOLD_SHUTDOWN] = SHUTDOWN,
                                        [NVML_TEMPERATURE_THRESHOLD_SLOWDOWN] = SLOWDOWN,
                                        [NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = MEMORY_MOST,
                                        [NVML_TEMPERATURE_THRESHOLD_GPU_MAX] = SLOWDOWN - 3};
  nvmlReturn_t result = nvml_ready_for(device, temp);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if ((unsigned)thresholdType >= sizeof thresholds / sizeof *thresholds) {
    return thresholdType < NVML_TEMPERATURE_THRESHOLD_COUNT ? NVML_ERROR_NOT_SUPPORTED
                                                            : NVML_ERROR_INVALID_ARGUMENT;
  }
  *temp = thresholds[thresholdType];
  return NVML_SUCCESS;
}

static nvmlReturn_t a_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock,
                            unsigned (*of)(nvmlDevice_t, nvmlClockType_t)) {
  nvmlReturn_t result = nvml_ready_for(device, clock);
  if (result != NVML_SUCCESS || type >= NVML_CLOCK_COUNT) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  *clock = of(device, type);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
  return a_clock(device, type, clock, clock_of);
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) {
  return a_clock(device, type, clock, most_clock_of);
}
nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t clockType, nvmlClockId_t clockId,
                                unsigned int *clockMHz) {
  return a_clock(device, clockType, clockMHz, clockId == NVML_CLOCK_ID_CURRENT ? clock_of : most_clock_of);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int *value) {
  nvmlReturn_t result = nvml_ready_for(device, value);
  if (result != NVML_SUCCESS || counter >= NVML_PCIE_UTIL_COUNT) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  *value = 0; /* copies take no time */
  return NVML_SUCCESS;
}

static nvmlReturn_t nothing_coded(nvmlDevice_t device, unsigned int *utilization, unsigned int *period) {
  nvmlReturn_t result = nvml_ready_unless_mig(device, utilization);
  if (result != NVML_SUCCESS || !period) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  *utilization = 0;
  *period = 166667;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                             unsigned int *samplingPeriodUs) {
  return nothing_coded(device, utilization, samplingPeriodUs);
}
nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                             unsigned int *samplingPeriodUs) {
  return nothing_coded(device, utilization, samplingPeriodUs);
}

/* --- NVLink and neighbours --- */

static unsigned linked_gpus(nvmlDevice_t device) {
  const struct sim_state *state = nvml_sim.node.state;
  unsigned count = 0;
  for (uint32_t gpu = 0; gpu < state->gpus; gpu++) {
    count += state->gpu[gpu].profile == nvml_gpu(device)->profile;
  }
  return nvml_profile(device)->nvlinks > 0 ? count : 0;
}

static nvmlReturn_t ready_for_link(nvmlDevice_t device, unsigned link, const void *output) {
  nvmlReturn_t result = nvml_ready_for(device, output);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (link >= NVML_NVLINK_MAX_LINKS) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return link < nvml_profile(device)->nvlinks ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive) {
  nvmlReturn_t result = ready_for_link(device, link, isActive);
  if (result == NVML_SUCCESS) {
    bool active = linked_gpus(device) > 1 || nvml_sim.node.state->in_fabric;
    *isActive = active ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *pNvLinkDeviceType) {
  nvmlReturn_t result = ready_for_link(device, link, pNvLinkDeviceType);
  if (result == NVML_SUCCESS) {
    *pNvLinkDeviceType = NVML_NVLINK_DEVICE_TYPE_SWITCH;
  }
  return result;
}

static void fill_fabric(nvmlDevice_t device, unsigned char uuid[16], unsigned *clique,
                        nvmlGpuFabricState_t *state, nvmlReturn_t *status) {
  const struct sim_state *node = nvml_sim.node.state;
  bool linked = node->in_fabric && nvml_profile(device)->nvlinks > 0 && nvml_profile(device)->major >= 9;
  memset(uuid, 0, 16);
  if (linked) {
    memcpy(uuid, node->fabric_uuid, 16);
  }
  *clique = linked ? node->fabric_clique : 0;
  *state = linked ? NVML_GPU_FABRIC_STATE_COMPLETED : NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
  *status = NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
  nvmlReturn_t result = nvml_ready_for(device, info);
  if (result == NVML_SUCCESS) {
    fill_fabric(device, info->clusterUuid, &info->cliqueId, &info->state, &info->status);
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
  nvmlReturn_t result = nvml_ready_for(device, info);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  fill_fabric(device, info->clusterUuid, &info->cliqueId, &info->state, &info->status);
  info->healthMask = 0;
  if (info->version == nvmlGpuFabricInfo_v3) {
    info->healthSummary = NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *pathInfo) {
  nvmlReturn_t result = nvml_ready_for(device1, pathInfo);
  if (result == NVML_SUCCESS) {
    result = nvml_ready_for(device2, pathInfo);
  }
  if (result == NVML_SUCCESS) {
    bool near = nvml_gpu(device1)->numa_node == nvml_gpu(device2)->numa_node;
    *pathInfo = device1 == device2 ? NVML_TOPOLOGY_INTERNAL
                : near             ? NVML_TOPOLOGY_NODE
                                   : NVML_TOPOLOGY_SYSTEM;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t p2pIndex, nvmlGpuP2PStatus_t *p2pStatus) {
  nvmlReturn_t result = nvml_ready_for(device1, p2pStatus);
  if (result == NVML_SUCCESS) {
    result = nvml_ready_for(device2, p2pStatus);
  }
  if (result == NVML_SUCCESS) {
    bool linked = p2pIndex == NVML_P2P_CAPS_INDEX_NVLINK && linked_gpus(device1) > 1 &&
                  nvml_gpu(device1)->profile == nvml_gpu(device2)->profile;
    *p2pStatus = linked ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  }
  return result;
}

/* Only root changes it, as with a real driver. */
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
  nvmlReturn_t result = nvml_ready_for(device, device);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (mode >= NVML_COMPUTEMODE_COUNT) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  if (geteuid() != 0) {
    return NVML_ERROR_NO_PERMISSION;
  }
  atomic_store(&nvml_gpu(device)->compute_mode, mode);
  return NVML_SUCCESS;
}
