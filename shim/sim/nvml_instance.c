/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU instances: profiles, placements, making and destroying.
 */
#include <stdio.h>
#include <unistd.h>

#include "nvml_instances.h"

static struct nvmlGpuInstance_st handles[SIM_GPUS][SIM_SLICES];

static nvmlGpuInstance_t handle_for(uint32_t gpu, struct mig_instance instance) {
  nvmlGpuInstance_t handle = &handles[gpu][instance.start];
  *handle = (struct nvmlGpuInstance_st){.gpu = gpu, .is = instance};
  return handle;
}

nvmlReturn_t nvml_ready_for_instance(nvmlGpuInstance_t handle, const void *output, bool privileged,
                                     const struct mig_card **card) {
  struct mig_instance now;
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  bool known = handle >= &handles[0][0] && handle < &handles[0][0] + SIM_GPUS * SIM_SLICES &&
               mig_instance_at(mig_word(nvml_sim.node.state, handle->gpu), handle->is.start, &now) &&
               now.kind == handle->is.kind;
  nvmlDevice_t device = known ? nvml_handle(handle->gpu) : NULL;
  return device ? nvml_ready_for_instances(device, output, privileged, card) : NVML_ERROR_INVALID_ARGUMENT;
}

/* --- profiles --- */

/* By NVML's constant, or by the profile's id; MIG_KINDS: none. */
static unsigned kind_of(unsigned number, bool by_id) {
  unsigned kind = 0;
  while (kind < MIG_KINDS && number != (by_id ? mig_kinds[kind].id : mig_kinds[kind].profile)) {
    kind++;
  }
  return kind;
}

static nvmlGpuInstanceProfileInfo_t describe(const struct mig_card *card, unsigned kind) {
  const struct mig_size *size = &card->size[kind];
  return (nvmlGpuInstanceProfileInfo_t){.id = mig_kinds[kind].id,
                                        .sliceCount = mig_kinds[kind].slices,
                                        .instanceCount = mig_kinds[kind].most,
                                        .multiprocessorCount = size->multiprocessors,
                                        .copyEngineCount = size->copy_engines,
                                        .decoderCount = size->decoders,
                                        .jpegCount = size->jpegs,
                                        .ofaCount = size->ofas,
                                        .memorySizeMB = size->memory_mib};
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
  const struct mig_card *card;
  nvmlReturn_t result = nvml_ready_for_instances(device, info, false, &card);
  if (result != NVML_SUCCESS) {
    return result;
  }
  unsigned kind = kind_of(profile, false);
  if (kind == MIG_KINDS) {
    return profile < NVML_GPU_INSTANCE_PROFILE_COUNT ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
  }
  *info = describe(card, kind);
  return NVML_SUCCESS;
}

/* Versions 2 and 3 differ in the middle and at the end. */
static nvmlReturn_t describe_versioned(const struct mig_card *card, unsigned kind,
                                       nvmlGpuInstanceProfileInfo_v2_t *info) {
  nvmlGpuInstanceProfileInfo_t is = describe(card, kind);
  if (info->version == nvmlGpuInstanceProfileInfo_v2) {
    *info = (nvmlGpuInstanceProfileInfo_v2_t){info->version,
                                              is.id,
                                              is.isP2pSupported,
                                              is.sliceCount,
                                              is.instanceCount,
                                              is.multiprocessorCount,
                                              is.copyEngineCount,
                                              is.decoderCount,
                                              is.encoderCount,
                                              is.jpegCount,
                                              is.ofaCount,
                                              is.memorySizeMB,
                                              ""};
    snprintf(info->name, sizeof info->name, "MIG %s", card->size[kind].name);
    return NVML_SUCCESS;
  }
  if (info->version != nvmlGpuInstanceProfileInfo_v3) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  nvmlGpuInstanceProfileInfo_v3_t *third = (nvmlGpuInstanceProfileInfo_v3_t *)info;
  *third = (nvmlGpuInstanceProfileInfo_v3_t){third->version,
                                             is.id,
                                             is.sliceCount,
                                             is.instanceCount,
                                             is.multiprocessorCount,
                                             is.copyEngineCount,
                                             is.decoderCount,
                                             is.encoderCount,
                                             is.jpegCount,
                                             is.ofaCount,
                                             is.memorySizeMB,
                                             "",
                                             0};
  snprintf(third->name, sizeof third->name, "MIG %s", card->size[kind].name);
  return NVML_SUCCESS;
}

static nvmlReturn_t profile_info(nvmlDevice_t device, unsigned number, bool by_id,
                                 nvmlGpuInstanceProfileInfo_v2_t *info) {
  const struct mig_card *card;
  nvmlReturn_t result = nvml_ready_for_instances(device, info, false, &card);
  if (result != NVML_SUCCESS) {
    return result;
  }
  unsigned kind = kind_of(number, by_id);
  if (kind == MIG_KINDS) {
    bool constant = !by_id && number < NVML_GPU_INSTANCE_PROFILE_COUNT;
    return constant || by_id ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
  }
  return describe_versioned(card, kind, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info) {
  return profile_info(device, profile, false, info);
}
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profileId,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
  return profile_info(device, profileId, true, info);
}

/* Ready for a privileged call about a profile's instances. */
static nvmlReturn_t ready_for_kind(nvmlDevice_t device, unsigned id, const void *output, unsigned *kind) {
  const struct mig_card *card;
  nvmlReturn_t result = nvml_ready_for_instances(device, output, true, &card);
  *kind = kind_of(id, true);
  return result == NVML_SUCCESS && *kind == MIG_KINDS ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count) {
  unsigned kind;
  unsigned found = 0;
  nvmlReturn_t result = ready_for_kind(device, profileId, count, &kind);
  if (result != NVML_SUCCESS) {
    return result;
  }
  for (unsigned start = 0; start < SIM_SLICES; start++) {
    if (!(mig_kinds[kind].starts >> start & 1)) {
      continue;
    }
    if (placements) {
      placements[found] = (nvmlGpuInstancePlacement_t){start, mig_kinds[kind].memory_slices};
    }
    found++;
  }
  *count = found;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId,
                                                        nvmlGpuInstancePlacement_t *placements,
                                                        unsigned int *count) {
  return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profileId, placements, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId,
                                                       unsigned int *count) {
  unsigned kind;
  nvmlReturn_t result = ready_for_kind(device, profileId, count, &kind);
  if (result != NVML_SUCCESS) {
    return result;
  }
  uint64_t word = mig_word(nvml_sim.node.state, device->gpu);
  if (!mig_is_on(word)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  *count = mig_remaining(word, kind);
  return NVML_SUCCESS;
}

/* --- instances --- */

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, uint32_t start, nvmlGpuInstance_t *handle) {
  unsigned kind;
  struct mig_instance made;
  nvmlReturn_t result = ready_for_kind(device, id, handle, &kind);
  if (result != NVML_SUCCESS) {
    return result;
  }
  result = nvml_mig_result(mig_create(nvml_sim.node.state, device->gpu, kind, start, &made));
  if (result == NVML_SUCCESS) {
    *handle = handle_for(device->gpu, made);
  }
  return result;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId,
                                         nvmlGpuInstance_t *gpuInstance) {
  return create(device, profileId, MIG_ANYWHERE, gpuInstance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *gpuInstance) {
  unsigned kind = kind_of(profileId, true);
  nvmlReturn_t result = nvml_ready_for(device, placement);
  if (result != NVML_SUCCESS) {
    return result;
  }
  bool possible = kind == MIG_KINDS ||
                  (placement->start < SIM_SLICES && (mig_kinds[kind].starts >> placement->start & 1) &&
                   placement->size == mig_kinds[kind].memory_slices);
  return possible ? create(device, profileId, placement->start, gpuInstance) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance) {
  const struct mig_card *card;
  nvmlReturn_t result = nvml_ready_for_instance(gpuInstance, gpuInstance, true, &card);
  if (result != NVML_SUCCESS) {
    return result;
  }
  return nvml_mig_result(mig_destroy(&nvml_sim.node, gpuInstance->gpu, gpuInstance->is.start));
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
                                       nvmlGpuInstance_t *gpuInstances, unsigned int *count) {
  unsigned kind;
  struct mig_instance all[SIM_SLICES];
  nvmlReturn_t result = ready_for_kind(device, profileId, count, &kind);
  if (result != NVML_SUCCESS || !gpuInstances) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  uint64_t word = mig_word(nvml_sim.node.state, device->gpu);
  if (!mig_is_on(word)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  unsigned there = mig_instances(word, all);
  unsigned found = 0;
  for (unsigned i = 0; i < there; i++) {
    if (all[i].kind == kind) {
      gpuInstances[found++] = handle_for(device->gpu, all[i]);
    }
  }
  *count = found;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                          nvmlGpuInstance_t *gpuInstance) {
  const struct mig_card *card;
  struct mig_instance all[SIM_SLICES];
  nvmlReturn_t result = nvml_ready_for_instances(device, gpuInstance, true, &card);
  if (result != NVML_SUCCESS) {
    return result;
  }
  uint64_t word = mig_word(nvml_sim.node.state, device->gpu);
  if (!mig_is_on(word)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  unsigned there = mig_instances(word, all);
  for (unsigned i = 0; i < there; i++) {
    if (mig_instance_id(all[i]) == id) {
      *gpuInstance = handle_for(device->gpu, all[i]);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info) {
  const struct mig_card *card;
  nvmlReturn_t result = nvml_ready_for_instance(gpuInstance, info, false, &card);
  if (result == NVML_SUCCESS) {
    const struct mig_kind *kind = &mig_kinds[gpuInstance->is.kind];
    *info = (nvmlGpuInstanceInfo_t){.device = nvml_handle(gpuInstance->gpu),
                                    .id = mig_instance_id(gpuInstance->is),
                                    .profileId = kind->id,
                                    .placement = {gpuInstance->is.start, kind->memory_slices}};
  }
  return result;
}
