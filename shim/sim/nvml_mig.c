/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG mode, and MIG devices: handles that mean a compute instance.
 */
#include <unistd.h>

#include "nvml_sim.h"
#include "sight.h"

#define MOST_DEVICES SIM_SLICES

bool nvml_compute_of(nvmlDevice_t device, struct mig_compute *compute) {
  return device->is_mig && mig_compute_at(mig_word(nvml_sim.node.state, device->gpu), device->slice, compute);
}

uint32_t nvml_part(nvmlDevice_t device) {
  struct mig_compute compute;
  return nvml_compute_of(device, &compute) ? mig_part(device->gpu, compute) : 0;
}

unsigned nvml_mig_devices(nvmlDevice_t device, nvmlDevice_t devices[SIM_SLICES]) {
  struct mig_compute computes[SIM_SLICES];
  unsigned count = mig_computes(mig_word(nvml_sim.node.state, device->gpu), computes);
  unsigned seen = 0;
  for (unsigned i = 0; i < count; i++) {
    char uuid[SIM_UUID_TEXT];
    mig_uuid_text(nvml_gpu(device), computes[i], uuid);
    if (sight_allows(nvml_sim.node.root, uuid)) {
      devices[seen++] = &nvml_sim.mig[device->gpu][computes[i].slice];
    }
  }
  return seen;
}

void nvml_instances_of(uint32_t part, unsigned *gpu_instance, unsigned *compute_instance) {
  struct mig_compute compute;
  bool has = part != 0 && mig_part_compute(nvml_sim.node.state, part, &compute);
  *gpu_instance = has ? mig_instance_id(compute.in) : NO_INSTANCE;
  *compute_instance = has ? mig_compute_id(compute) : NO_INSTANCE;
}

nvmlReturn_t nvml_mig_result(enum mig_answer answer) {
  static const nvmlReturn_t results[] = {[MIG_DONE] = NVML_SUCCESS,
                                         [MIG_OFF] = NVML_ERROR_NOT_SUPPORTED,
                                         [MIG_ABSENT] = NVML_ERROR_INVALID_ARGUMENT,
                                         [MIG_NO_ROOM] = NVML_ERROR_INSUFFICIENT_RESOURCES,
                                         [MIG_IN_USE] = NVML_ERROR_IN_USE};
  return results[answer];
}

nvmlReturn_t nvml_ready_unless_mig(nvmlDevice_t device, const void *output) {
  nvmlReturn_t result = nvml_ready_for(device, output);
  bool partitioned = result == NVML_SUCCESS && mig_is_on(mig_word(nvml_sim.node.state, device->gpu));
  return partitioned ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvml_ready_for_instances(nvmlDevice_t device, const void *output, bool privileged,
                                      const struct mig_card **card) {
  nvmlReturn_t result = nvml_ready_for(device, output);
  if (result != NVML_SUCCESS) {
    return result;
  }
  *card = nvml_profile(device)->mig;
  if (!*card) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  return privileged && geteuid() != 0 ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode) {
  const struct mig_card *card;
  const void *outputs = currentMode && pendingMode ? currentMode : NULL;
  nvmlReturn_t result = nvml_ready_for_instances(device, outputs, false, &card);
  if (result == NVML_SUCCESS) {
    uint64_t word = mig_word(nvml_sim.node.state, device->gpu);
    *currentMode = mig_is_on(word) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    *pendingMode = mig_will_be_on(word) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
  }
  return result;
}

/* What is in use stays as it is until the next reset, or the next attempt. */
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activationStatus) {
  const struct mig_card *card;
  nvmlReturn_t result = nvml_ready_for_instances(device, activationStatus, true, &card);
  if (result == NVML_SUCCESS && mode != NVML_DEVICE_MIG_DISABLE && mode != NVML_DEVICE_MIG_ENABLE) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (result == NVML_SUCCESS) {
    bool on = mode == NVML_DEVICE_MIG_ENABLE;
    *activationStatus = nvml_mig_result(mig_set_mode(&nvml_sim.node, device->gpu, on));
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
  nvmlReturn_t result = nvml_ready_for(device, count);
  if (result == NVML_SUCCESS) {
    *count = mig_is_on(mig_word(nvml_sim.node.state, device->gpu)) ? MOST_DEVICES : 0;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *migDevice) {
  const struct mig_card *card;
  nvmlDevice_t devices[SIM_SLICES];
  nvmlReturn_t result = nvml_ready_for_instances(device, migDevice, false, &card);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (index >= MOST_DEVICES) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (index >= nvml_mig_devices(device, devices)) {
    return NVML_ERROR_NOT_FOUND;
  }
  *migDevice = devices[index];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice) {
  nvmlReturn_t result = nvml_ready_for_any(device, isMigDevice);
  if (result == NVML_SUCCESS) {
    *isMigDevice = device->is_mig;
  }
  return result;
}

/* Of a GPU: among its like. Of a MIG device: in its GPU. */
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
  nvmlReturn_t result = nvml_ready_for_any(device, index);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!device->is_mig) {
    *index = device->index;
    return NVML_SUCCESS;
  }
  nvmlDevice_t devices[SIM_SLICES];
  unsigned count = nvml_mig_devices(device, devices);
  for (unsigned i = 0; i < count; i++) {
    if (devices[i] == device) {
      *index = i;
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t ready_for_mig_device(nvmlDevice_t device, const void *output,
                                         struct mig_compute *compute) {
  nvmlReturn_t result = nvml_ready_for_any(device, output);
  return result == NVML_SUCCESS && !nvml_compute_of(device, compute) ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
  struct mig_compute compute;
  nvmlReturn_t result = ready_for_mig_device(device, id, &compute);
  if (result == NVML_SUCCESS) {
    *id = mig_instance_id(compute.in);
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
  struct mig_compute compute;
  nvmlReturn_t result = ready_for_mig_device(device, id, &compute);
  if (result == NVML_SUCCESS) {
    *id = mig_compute_id(compute);
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device) {
  struct mig_compute compute;
  nvmlReturn_t result = ready_for_mig_device(migDevice, device, &compute);
  if (result == NVML_SUCCESS) {
    *device = nvml_handle(migDevice->gpu);
  }
  return result;
}

/* nvml.h: of MIG devices only. */
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
  struct mig_compute compute;
  nvmlReturn_t result = nvml_ready_for_any(device, attributes);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!nvml_compute_of(device, &compute)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  const struct mig_card *card = nvml_profile(device)->mig;
  const struct mig_size *size = &card->size[compute.in.kind];
  *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = mig_multiprocessors(card, compute),
                                         .sharedCopyEngineCount = size->copy_engines,
                                         .sharedDecoderCount = size->decoders,
                                         .sharedJpegCount = size->jpegs,
                                         .sharedOfaCount = size->ofas,
                                         .gpuInstanceSliceCount = mig_kinds[compute.in.kind].slices,
                                         .computeInstanceSliceCount = compute.size,
                                         .memorySizeMB = size->memory_mib};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
  return nvmlDeviceGetAttributes_v2(device, attributes);
}
