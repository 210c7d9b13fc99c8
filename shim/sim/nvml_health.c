/* SPDX-License-Identifier: Apache-2.0
 *
 * ECC counters, remapped rows and why clocks are low: what `aliquot-sim inject` has done.
 */
#include "nvml_sim.h"

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                  nvmlEnableState_t *pending) {
  nvmlReturn_t result = nvml_ready_for(device, current);
  if (result != NVML_SUCCESS || !pending) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  *current = NVML_FEATURE_ENABLED;
  *pending = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t *defaultMode) {
  nvmlReturn_t result = nvml_ready_for(device, defaultMode);
  if (result == NVML_SUCCESS) {
    *defaultMode = NVML_FEATURE_ENABLED;
  }
  return result;
}

/* Corrected errors never happen here. */
static uint64_t errors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter) {
  const struct sim_faults *faults = &nvml_gpu(device)->faults;
  if (type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED) {
    return 0;
  }
  return atomic_load(counter == NVML_VOLATILE_ECC ? &faults->ecc : &faults->ecc_ever);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                         nvmlEccCounterType_t counterType, unsigned long long *eccCounts) {
  nvmlReturn_t result = nvml_ready_for(device, eccCounts);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (errorType >= NVML_MEMORY_ERROR_TYPE_COUNT || counterType >= NVML_ECC_COUNTER_TYPE_COUNT) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *eccCounts = errors(device, errorType, counterType);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
                                             nvmlEccCounterType_t counterType,
                                             nvmlMemoryLocation_t locationType, unsigned long long *count) {
  if (locationType >= NVML_MEMORY_LOCATION_COUNT) {
    nvmlReturn_t result = nvml_ready_for(device, count);
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  nvmlReturn_t result = nvmlDeviceGetTotalEccErrors(device, errorType, counterType, count);
  if (result == NVML_SUCCESS && locationType != NVML_MEMORY_LOCATION_DRAM) {
    *count = 0;
  }
  return result;
}

/* Every uncorrected error costs a row, until the GPU is reset. */
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
                                       unsigned int *isPending, unsigned int *failureOccurred) {
  nvmlReturn_t result = nvml_ready_for(device, corrRows);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!uncRows || !isPending || !failureOccurred) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (nvml_profile(device)->major < 8) {
    return NVML_ERROR_NOT_SUPPORTED; /* nvml.h: from Ampere on */
  }
  const struct sim_faults *faults = &nvml_gpu(device)->faults;
  *corrRows = 0;
  *uncRows = (unsigned)atomic_load(&faults->ecc_ever);
  *isPending = atomic_load(&faults->ecc) > 0;
  *failureOccurred = 0;
  return NVML_SUCCESS;
}

#define REASONS                                                                                              \
  (nvmlClocksEventReasonGpuIdle | nvmlClocksEventReasonSwPowerCap | nvmlClocksThrottleReasonHwSlowdown |     \
   nvmlClocksEventReasonSwThermalSlowdown | nvmlClocksThrottleReasonHwThermalSlowdown |                      \
   nvmlClocksThrottleReasonHwPowerBrakeSlowdown)

static nvmlReturn_t reasons(nvmlDevice_t device, unsigned long long *output) {
  nvmlReturn_t result = nvml_ready_for(device, output);
  if (result == NVML_SUCCESS) {
    uint32_t throttled = atomic_load(&nvml_gpu(device)->faults.throttled);
    *output = throttled ? throttled : nvmlClocksEventReasonGpuIdle;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                    unsigned long long *clocksEventReasons) {
  return reasons(device, clocksEventReasons);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long *clocksThrottleReasons) {
  return reasons(device, clocksThrottleReasons);
}

static nvmlReturn_t supported_reasons(nvmlDevice_t device, unsigned long long *output) {
  nvmlReturn_t result = nvml_ready_for(device, output);
  if (result == NVML_SUCCESS) {
    *output = REASONS;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device,
                                                      unsigned long long *supportedClocksEventReasons) {
  return supported_reasons(device, supportedClocksEventReasons);
}
nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device,
                                                         unsigned long long *supportedClocksThrottleReasons) {
  return supported_reasons(device, supportedClocksThrottleReasons);
}
