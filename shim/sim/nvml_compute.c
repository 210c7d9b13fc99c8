/* SPDX-License-Identifier: Apache-2.0
 *
 * Compute instances of a GPU instance.
 */
#include <stdio.h>
#include <string.h>

#include "nvml_instances.h"

/* One per place; it means the compute instance of this size there, if there is one. */
struct nvmlComputeInstance_st {
  nvmlGpuInstance_t in;
  unsigned slice;
  unsigned size;
};

static struct nvmlComputeInstance_st handles[SIM_GPUS][SIM_SLICES];

static nvmlComputeInstance_t handle_for(nvmlGpuInstance_t in, struct mig_compute compute) {
  nvmlComputeInstance_t handle = &handles[in->gpu][compute.slice];
  *handle = (struct nvmlComputeInstance_st){.in = in, .slice = compute.slice, .size = compute.size};
  return handle;
}

static nvmlReturn_t ready_for_compute(nvmlComputeInstance_t handle, const void *output, bool privileged,
                                      struct mig_compute *compute) {
  const struct mig_card *card;
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  bool known = handle >= &handles[0][0] && handle < &handles[0][0] + SIM_GPUS * SIM_SLICES && handle->in;
  result =
      known ? nvml_ready_for_instance(handle->in, output, privileged, &card) : NVML_ERROR_INVALID_ARGUMENT;
  if (result != NVML_SUCCESS) {
    return result;
  }
  bool there = mig_compute_at(mig_word(nvml_sim.node.state, handle->in->gpu), handle->slice, compute) &&
               compute->size == handle->size;
  return there ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* --- profiles: their ids are NVML's constants, as nvidia-smi mig -lcip shows them --- */

static unsigned size_of(unsigned profile) {
  static const unsigned sizes[] = {[NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = 1,
                                   [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = 2,
                                   [NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = 3,
                                   [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = 4,
                                   [NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = 7};
  return profile < sizeof sizes / sizeof *sizes ? sizes[profile] : 0;
}

static unsigned profile_of(unsigned size) {
  return size == SIM_SLICES ? NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE : size - 1;
}

/* Ready for a call about compute instances of a profile: NOT_SUPPORTED if the GPU instance can have none. */
static nvmlReturn_t ready_for_profile(nvmlGpuInstance_t in, unsigned profile, const void *output,
                                      bool privileged, const struct mig_card **card, unsigned *size) {
  nvmlReturn_t result = nvml_ready_for_instance(in, output, privileged, card);
  if (result != NVML_SUCCESS) {
    return result;
  }
  *size = size_of(profile);
  bool possible = *size != 0 && mig_possible_slices(in->is.kind, *size) != 0;
  return possible ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static unsigned count_of(unsigned places) {
  return (unsigned)__builtin_popcount(places);
}

static nvmlReturn_t describe(nvmlGpuInstance_t in, unsigned profile, unsigned engines, const void *output,
                             nvmlComputeInstanceProfileInfo_t *is, char name[SIM_NAME]) {
  const struct mig_card *card;
  unsigned size;
  nvmlReturn_t result = ready_for_profile(in, profile, output, false, &card, &size);
  if (result == NVML_ERROR_NOT_SUPPORTED && profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (result != NVML_SUCCESS || engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  const struct mig_size *whole = &card->size[in->is.kind];
  struct mig_compute compute = {.in = in->is, .slice = in->is.start, .size = size};
  mig_name(card, compute, name);
  *is = (nvmlComputeInstanceProfileInfo_t){.id = profile,
                                           .sliceCount = size,
                                           .instanceCount = count_of(mig_possible_slices(in->is.kind, size)),
                                           .multiprocessorCount = mig_multiprocessors(card, compute),
                                           .sharedCopyEngineCount = whole->copy_engines,
                                           .sharedDecoderCount = whole->decoders,
                                           .sharedJpegCount = whole->jpegs,
                                           .sharedOfaCount = whole->ofas};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                          unsigned int engProfile,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
  nvmlComputeInstanceProfileInfo_t is;
  char name[SIM_NAME];
  nvmlReturn_t result = describe(gpuInstance, profile, engProfile, info, &is, name);
  if (result == NVML_SUCCESS) {
    *info = is;
  }
  return result;
}

/* Version 3 is version 2 with one more number. */
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance,
                                                           unsigned int profile, unsigned int engProfile,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info) {
  nvmlComputeInstanceProfileInfo_t is;
  char name[SIM_NAME];
  nvmlReturn_t result = describe(gpuInstance, profile, engProfile, info, &is, name);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (info->version != nvmlComputeInstanceProfileInfo_v2 &&
      info->version != nvmlComputeInstanceProfileInfo_v3) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  if (info->version == nvmlComputeInstanceProfileInfo_v3) {
    ((nvmlComputeInstanceProfileInfo_v3_t *)info)->capabilities = 0;
  }
  memcpy(&info->id, &is, sizeof is);
  snprintf(info->name, sizeof info->name, "MIG %s", name);
  return NVML_SUCCESS;
}
_Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v2_t, name) ==
                   offsetof(nvmlComputeInstanceProfileInfo_v2_t, id) +
                       sizeof(nvmlComputeInstanceProfileInfo_t),
               "version 2 is a version, version 1, and a name");
_Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v3_t, name) ==
                   offsetof(nvmlComputeInstanceProfileInfo_v2_t, name),
               "version 3 begins as version 2");

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gpuInstance,
                                                                unsigned int profileId, unsigned int *count) {
  const struct mig_card *card;
  unsigned size;
  nvmlReturn_t result = ready_for_profile(gpuInstance, profileId, count, true, &card, &size);
  if (result == NVML_SUCCESS) {
    uint64_t word = mig_word(nvml_sim.node.state, gpuInstance->gpu);
    *count = count_of(mig_free_slices(word, gpuInstance->is, size));
  }
  return result;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t gpuInstance,
                                                                 unsigned int profileId,
                                                                 nvmlComputeInstancePlacement_t *placements,
                                                                 unsigned int *count) {
  const struct mig_card *card;
  unsigned size;
  unsigned found = 0;
  nvmlReturn_t result = ready_for_profile(gpuInstance, profileId, count, true, &card, &size);
  if (result != NVML_SUCCESS) {
    return result;
  }
  unsigned possible = mig_possible_slices(gpuInstance->is.kind, size);
  for (unsigned slice = 0; slice < SIM_SLICES; slice++) {
    if (possible >> slice & 1) {
      if (placements) {
        placements[found] = (nvmlComputeInstancePlacement_t){slice, size};
      }
      found++;
    }
  }
  *count = found;
  return NVML_SUCCESS;
}

/* --- instances --- */

static nvmlReturn_t create(nvmlGpuInstance_t in, unsigned profile, uint32_t slice,
                           nvmlComputeInstance_t *handle) {
  const struct mig_card *card;
  struct mig_compute made;
  unsigned size;
  nvmlReturn_t result = ready_for_profile(in, profile, handle, true, &card, &size);
  if (result != NVML_SUCCESS) {
    return result;
  }
  result = nvml_mig_result(mig_create_compute(nvml_sim.node.state, in->gpu, in->is, size, slice, &made));
  if (result == NVML_SUCCESS) {
    *handle = handle_for(in, made);
  }
  return result;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                  nvmlComputeInstance_t *computeInstance) {
  return create(gpuInstance, profileId, MIG_ANYWHERE, computeInstance);
}

nvmlReturn_t
nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                  const nvmlComputeInstancePlacement_t *placement,
                                                  nvmlComputeInstance_t *computeInstance) {
  const struct mig_card *card;
  unsigned size;
  nvmlReturn_t result = ready_for_profile(gpuInstance, profileId, placement, true, &card, &size);
  if (result != NVML_SUCCESS) {
    return result;
  }
  bool possible = placement->start < SIM_SLICES && placement->size == size &&
                  (mig_possible_slices(gpuInstance->is.kind, size) >> placement->start & 1);
  return possible ? create(gpuInstance, profileId, placement->start, computeInstance)
                  : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance) {
  struct mig_compute compute;
  nvmlReturn_t result = ready_for_compute(computeInstance, computeInstance, true, &compute);
  if (result != NVML_SUCCESS) {
    return result;
  }
  return nvml_mig_result(mig_destroy_compute(&nvml_sim.node, computeInstance->in->gpu, compute.slice));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                nvmlComputeInstance_t *computeInstances,
                                                unsigned int *count) {
  const struct mig_card *card;
  struct mig_compute all[SIM_SLICES];
  unsigned size;
  nvmlReturn_t result = ready_for_profile(gpuInstance, profileId, count, true, &card, &size);
  if (result != NVML_SUCCESS || !computeInstances) {
    return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
  }
  unsigned there = mig_computes(mig_word(nvml_sim.node.state, gpuInstance->gpu), all);
  unsigned found = 0;
  for (unsigned i = 0; i < there; i++) {
    if (all[i].in.start == gpuInstance->is.start && all[i].size == size) {
      computeInstances[found++] = handle_for(gpuInstance, all[i]);
    }
  }
  *count = found;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                   nvmlComputeInstance_t *computeInstance) {
  const struct mig_card *card;
  struct mig_compute compute;
  nvmlReturn_t result = nvml_ready_for_instance(gpuInstance, computeInstance, true, &card);
  if (result != NVML_SUCCESS) {
    return result;
  }
  uint64_t word = mig_word(nvml_sim.node.state, gpuInstance->gpu);
  if (id >= SIM_SLICES || !mig_compute_at(word, gpuInstance->is.start + id, &compute) ||
      compute.in.start != gpuInstance->is.start) {
    return NVML_ERROR_NOT_FOUND;
  }
  *computeInstance = handle_for(gpuInstance, compute);
  return NVML_SUCCESS;
}

static nvmlComputeInstanceInfo_t about(nvmlGpuInstance_t in, struct mig_compute compute) {
  return (nvmlComputeInstanceInfo_t){.device = nvml_handle(in->gpu),
                                     .gpuInstance = in,
                                     .id = mig_compute_id(compute),
                                     .profileId = profile_of(compute.size),
                                     .placement = {mig_compute_id(compute), compute.size}};
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance,
                                           nvmlComputeInstanceInfo_t *info) {
  struct mig_compute compute;
  nvmlReturn_t result = ready_for_compute(computeInstance, info, false, &compute);
  if (result == NVML_SUCCESS) {
    *info = about(computeInstance->in, compute);
  }
  return result;
}

/* The first ABI ends before the placement. */
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance,
                                        nvmlComputeInstanceInfo_t *info) {
  struct mig_compute compute;
  nvmlReturn_t result = ready_for_compute(computeInstance, info, false, &compute);
  if (result == NVML_SUCCESS) {
    nvmlComputeInstanceInfo_t full = about(computeInstance->in, compute);
    memcpy(info, &full, offsetof(nvmlComputeInstanceInfo_t, placement));
  }
  return result;
}
