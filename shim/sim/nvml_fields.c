/* SPDX-License-Identifier: Apache-2.0
 *
 * Field values: some of what other calls tell, by number. Others answer NOT_SUPPORTED each for itself.
 */
#include <time.h>

#include "nvml_sim.h"

static void put_number(nvmlFieldValue_t *field, unsigned number) {
  field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
  field->value.uiVal = number;
  field->nvmlReturn = NVML_SUCCESS;
}

static void put_count(nvmlFieldValue_t *field, uint64_t count) {
  field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
  field->value.ullVal = count;
  field->nvmlReturn = NVML_SUCCESS;
}

static void read_field(nvmlDevice_t device, nvmlFieldValue_t *field) {
  const struct sim_faults *faults = &nvml_gpu(device)->faults;
  switch (field->fieldId) {
  case NVML_FI_DEV_ECC_CURRENT:
  case NVML_FI_DEV_ECC_PENDING:
    put_number(field, NVML_FEATURE_ENABLED);
    break;
  case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
  case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    put_count(field, 0);
    break;
  case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
  case NVML_FI_DEV_ECC_DBE_VOL_DEV:
    put_count(field, atomic_load(&faults->ecc));
    break;
  case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
  case NVML_FI_DEV_ECC_DBE_AGG_DEV:
    put_count(field, atomic_load(&faults->ecc_ever));
    break;
  case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
    put_number(field, atomic_load(&faults->needs_reset) ? NVML_GPU_RECOVERY_ACTION_GPU_RESET
                                                        : NVML_GPU_RECOVERY_ACTION_NONE);
    break;
  case NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: /* MIG user guide: from Hopper on */
    put_number(field, nvml_profile(device)->mig && nvml_profile(device)->major >= 9);
    break;
  case NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE:
    put_number(field, nvml_profile(device)->mig != NULL);
    break;
  default:
    field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values) {
  struct timespec now;
  nvmlReturn_t result = nvml_ready_for(device, values);
  if (result != NVML_SUCCESS || valuesCount <= 0) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < valuesCount; i++) {
    values[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
    values[i].latencyUsec = 0;
    read_field(device, &values[i]);
  }
  return NVML_SUCCESS;
}
