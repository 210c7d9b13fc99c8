/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GPU is, and how much of its memory is taken.
 */
#include <stdio.h>
#include <string.h>

#include "meter.h"
#include "nvml_sim.h"
#include "slots.h"

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
  char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
  char part[SIM_NAME] = "";
  struct mig_compute compute;
  nvmlReturn_t result = nvml_ready_for_any(device, name);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (nvml_compute_of(device, &compute)) {
    mig_name(nvml_profile(device)->mig, compute, part);
  }
  snprintf(text, sizeof text, "Simulated %s%s%.24s", nvml_profile(device)->product, *part ? " MIG " : "",
           part);
  return nvml_text(text, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  char text[SIM_UUID_TEXT];
  struct mig_compute compute;
  nvmlReturn_t result = nvml_ready_for_any(device, uuid);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (nvml_compute_of(device, &compute)) {
    mig_uuid_text(nvml_gpu(device), compute, text);
  } else {
    node_uuid_text(nvml_gpu(device), text);
  }
  return nvml_text(text, uuid, length);
}

/* Most answers are one number. */
#define NUMBER(NAME, TYPE, EXPRESSION)                                                                       \
  nvmlReturn_t NAME(nvmlDevice_t device, TYPE *output) {                                                     \
    nvmlReturn_t result = nvml_ready_for(device, output);                                                    \
    if (result == NVML_SUCCESS) {                                                                            \
      *output = (EXPRESSION);                                                                                \
    }                                                                                                        \
    return result;                                                                                           \
  }

NUMBER(nvmlDeviceGetMinorNumber, unsigned int, nvml_gpu(device)->minor)
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, nvml_profile(device)->nvml_architecture)
NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, (unsigned)nvml_gpu(device)->numa_node)
NUMBER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
NUMBER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, atomic_load(&nvml_gpu(device)->compute_mode))

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  nvmlReturn_t result = nvml_ready_for_any(device, major);
  if (result != NVML_SUCCESS || !minor) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  *major = (int)nvml_profile(device)->major;
  *minor = (int)nvml_profile(device)->minor;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  nvmlReturn_t result = nvml_ready_for(device, pci);
  if (result != NVML_SUCCESS) {
    return result;
  }
  const struct sim_gpu *gpu = nvml_gpu(device);
  char text[SIM_BUS_TEXT];
  node_bus_text(gpu, text);
  *pci = (nvmlPciInfo_t){.bus = gpu->pci_bus, .pciDeviceId = nvml_profile(device)->pci_device};
  snprintf(pci->busId, sizeof pci->busId, "%s", text);
  snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%s", text + 4);
  return NVML_SUCCESS;
}

/* The older ABIs end before busId, and before pciSubSystemId. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  nvmlPciInfo_t full;
  nvmlReturn_t result = pci ? nvmlDeviceGetPciInfo_v3(device, &full) : nvml_ready_for(device, pci);
  if (result == NVML_SUCCESS) {
    memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  nvmlPciInfo_t full;
  nvmlReturn_t result = pci ? nvmlDeviceGetPciInfo_v3(device, &full) : nvml_ready_for(device, pci);
  if (result == NVML_SUCCESS) {
    memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
  }
  return result;
}

/* Of a GPU that is partitioned: of all its instances. */
static nvmlMemory_v2_t memory_of(nvmlDevice_t device) {
  const struct sim_profile *profile = nvml_profile(device);
  struct sim_state *state = nvml_sim.node.state;
  uint32_t part = nvml_part(device);
  nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
  slots_sweep(&nvml_sim.node, device->gpu, SIM_ANY, 0);
  if (part != 0) {
    memory.total = mig_memory(state, device->gpu, part);
    memory.used = meter_read(mig_meter(state, device->gpu, part)).used;
  } else {
    memory.total = (uint64_t)profile->total_mib << 20;
    memory.reserved = (uint64_t)profile->reserved_mib << 20;
    memory.used = mig_used(state, device->gpu);
  }
  memory.free = memory.total - memory.reserved - memory.used;
  return memory;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  nvmlReturn_t result = nvml_ready_for_any(device, memory);
  if (result != NVML_SUCCESS) {
    return result;
  }
  nvmlMemory_v2_t full = memory_of(device);
  *memory = (nvmlMemory_t){.total = full.total, .free = full.free, .used = full.used + full.reserved};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
  nvmlReturn_t result = nvml_ready_for_any(device, memory);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (memory->version != nvmlMemory_v2) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  *memory = memory_of(device);
  return NVML_SUCCESS;
}
