/* SPDX-License-Identifier: Apache-2.0
 *
 * The MIG devices of a GPU, in a list of GPUs and on the screen.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* drivers of all ages shall do */
#include <nvml.h>

#include <stdio.h>
#include <string.h>

#include "smi.h"

struct part {
  nvmlDevice_t device;
  char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
  char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
};

/* Call `show` for each; drivers without MIG have none. */
static void each(nvmlDevice_t device, void (*show)(unsigned gpu, unsigned number, struct part *part),
                 unsigned gpu) {
  unsigned most = 0;
  if (nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS) {
    return;
  }
  for (unsigned i = 0, shown = 0; i < most; i++) {
    struct part part;
    if (nvmlDeviceGetMigDeviceHandleByIndex(device, i, &part.device) == NVML_SUCCESS &&
        nvmlDeviceGetName(part.device, part.name, sizeof part.name) == NVML_SUCCESS &&
        nvmlDeviceGetUUID(part.device, part.uuid, sizeof part.uuid) == NVML_SUCCESS) {
      show(gpu, shown++, &part);
    }
  }
}

static const char *profile_of(const struct part *part) {
  const char *profile = strstr(part->name, "MIG ");
  return profile ? profile : part->name;
}

static void list(unsigned gpu, unsigned number, struct part *part) {
  (void)gpu;
  printf("  %-20s Device %2u: (UUID: %s)\n", profile_of(part), number, part->uuid);
}

static void show(unsigned gpu, unsigned number, struct part *part) {
  nvmlMemory_t memory = {0};
  unsigned instance = 0;
  unsigned compute = 0;
  (void)number;
  nvmlDeviceGetMemoryInfo(part->device, &memory);
  nvmlDeviceGetGpuInstanceId(part->device, &instance);
  nvmlDeviceGetComputeInstanceId(part->device, &compute);
  printf("| %3u  %-18.18s GI %2u CI %u  %9lluMiB / %9lluMiB %11s |\n", gpu, profile_of(part), instance % 100,
         compute % 10, memory.used >> 20, memory.total >> 20, "");
}

void smi_list_mig(nvmlDevice_t device) {
  each(device, list, 0);
}
void smi_show_mig(unsigned index, nvmlDevice_t device) {
  each(device, show, index);
}
