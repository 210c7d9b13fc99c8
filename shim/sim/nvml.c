/* SPDX-License-Identifier: Apache-2.0
 *
 * Start, end, the system, and handles.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

#include "nvml_sim.h"

struct nvml_sim nvml_sim;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned references;

nvmlReturn_t nvml_ready(void) {
  pthread_mutex_lock(&lock);
  bool ready = references > 0;
  pthread_mutex_unlock(&lock);
  return ready ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvml_ready_for_any(nvmlDevice_t device, const void *output) {
  struct mig_compute compute;
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  bool known = device >= nvml_sim.device && device < nvml_sim.device + nvml_sim.devices;
  bool partition = device >= &nvml_sim.mig[0][0] && device < &nvml_sim.mig[0][0] + SIM_GPUS * SIM_SLICES;
  if ((!known && !(partition && nvml_compute_of(device, &compute))) || !output) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return atomic_load(&nvml_gpu(device)->faults.lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_ready_for(nvmlDevice_t device, const void *output) {
  nvmlReturn_t result = nvml_ready_for_any(device, output);
  return result == NVML_SUCCESS && device->is_mig ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlDevice_t nvml_handle(uint32_t gpu) {
  for (unsigned index = 0; index < nvml_sim.devices; index++) {
    if (nvml_sim.device[index].gpu == gpu) {
      return &nvml_sim.device[index];
    }
  }
  return NULL;
}

struct sim_gpu *nvml_gpu(nvmlDevice_t device) {
  return &nvml_sim.node.state->gpu[device->gpu];
}
const struct sim_profile *nvml_profile(nvmlDevice_t device) {
  return &sim_profiles[nvml_gpu(device)->profile];
}

const struct sim_driver *nvml_driver(void) {
  return &sim_drivers[nvml_sim.node.state->driver];
}

uint64_t nvml_milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

nvmlReturn_t nvml_text(const char *text, char *buffer, unsigned length) {
  size_t size = strlen(text) + 1;
  if (size > length) {
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  memcpy(buffer, text, size);
  return NVML_SUCCESS;
}

/* The mapping of before is kept and used again unless the file is another one. Nothing is ever closed: a
 * libcuda in this process would lose its lock on the file. */
static nvmlReturn_t attach(const char *root) {
  char path[4096];
  struct stat wanted;
  struct stat mapped;
  snprintf(path, sizeof path, "%s/state", root);
  if (nvml_sim.node.state && stat(path, &wanted) == 0 && fstat(nvml_sim.node.fd, &mapped) == 0 &&
      wanted.st_dev == mapped.st_dev && wanted.st_ino == mapped.st_ino) {
    return NVML_SUCCESS;
  }
  switch (node_open(&nvml_sim.node, root)) {
  case NODE_OK:
    return NVML_SUCCESS;
  case NODE_ABSENT:
    return NVML_ERROR_DRIVER_NOT_LOADED;
  case NODE_OTHER_LAYOUT:
    return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
  default:
    return NVML_ERROR_MEMORY;
  }
}

static nvmlReturn_t start(bool need_gpus) {
  const char *root = node_root();
  unsigned gpus[SIM_GPUS];
  nvmlReturn_t result = attach(root);
  if (result != NVML_SUCCESS) {
    return result;
  }
  nvml_sim.devices = node_present(nvml_sim.node.state, root, gpus);
  for (unsigned index = 0; index < nvml_sim.devices; index++) {
    nvml_sim.device[index] = (struct nvmlDevice_st){.index = index, .gpu = gpus[index]};
  }
  for (unsigned place = 0; place < SIM_GPUS * SIM_SLICES; place++) {
    nvml_sim.mig[place / SIM_SLICES][place % SIM_SLICES] =
        (struct nvmlDevice_st){.gpu = place / SIM_SLICES, .is_mig = true, .slice = place % SIM_SLICES};
  }
  return nvml_sim.devices == 0 && need_gpus ? NVML_ERROR_GPU_NOT_FOUND : NVML_SUCCESS;
}

static nvmlReturn_t initialise(unsigned flags, bool need_gpus) {
  if ((flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH | NVML_INIT_FLAG_FORCE_INIT)) !=
      0) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  pthread_mutex_lock(&lock);
  nvmlReturn_t result = references > 0 ? NVML_SUCCESS : start(need_gpus && !(flags & NVML_INIT_FLAG_NO_GPUS));
  references += result == NVML_SUCCESS;
  pthread_mutex_unlock(&lock);
  return result;
}

nvmlReturn_t nvmlInit(void) {
  return initialise(0, true);
}
nvmlReturn_t nvmlInit_v2(void) {
  return initialise(0, false);
}
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  return initialise(flags, false);
}

nvmlReturn_t nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  nvmlReturn_t result = references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  references -= result == NVML_SUCCESS;
  pthread_mutex_unlock(&lock);
  return result;
}

const char *nvmlErrorString(nvmlReturn_t result) {
  static const char *const texts[] = {
      [NVML_SUCCESS] = "Success",
      [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
      [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
      [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
      [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
      [NVML_ERROR_NOT_FOUND] = "Not Found",
      [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
      [NVML_ERROR_TIMEOUT] = "Timeout",
      [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
      [NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
      [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
      [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
      [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
      [NVML_ERROR_IN_USE] = "In use by another client",
      [NVML_ERROR_MEMORY] = "Insufficient Memory",
      [NVML_ERROR_NO_DATA] = "No data",
      [NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
      [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
      [NVML_ERROR_GPU_NOT_FOUND] = "GPU not found",
  };
  bool known = (unsigned)result < sizeof texts / sizeof *texts && texts[result];
  return known ? texts[result] : "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  return version ? nvml_text(nvml_driver()->version, version, length) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!version) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  char text[NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE];
  snprintf(text, sizeof text, "%d.%s", nvml_driver()->cuda / 1000, nvml_driver()->version);
  return nvml_text(text, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!cudaDriverVersion) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *cudaDriverVersion = nvml_driver()->cuda;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion) {
  return nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
  char path[64];
  char text[1024] = "";
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!name || length == 0) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file) {
    return NVML_ERROR_NOT_FOUND;
  }
  size_t size = fread(text, 1, sizeof text - 1, file); /* ends the program's name with its own '\0' */
  fclose(file);
  if (size == 0) {
    return NVML_ERROR_NOT_FOUND;
  }
  snprintf(name, length, "%s", text);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!deviceCount) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *deviceCount = nvml_sim.devices;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount) {
  return nvmlDeviceGetCount_v2(deviceCount);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!device || index >= nvml_sim.devices) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *device = &nvml_sim.device[index];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!uuid || !device) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  for (unsigned index = 0; index < nvml_sim.devices; index++) {
    char text[SIM_UUID_TEXT];
    node_uuid_text(nvml_gpu(&nvml_sim.device[index]), text);
    if (strcasecmp(text, uuid) == 0) {
      *device = &nvml_sim.device[index];
      return NVML_SUCCESS;
    }
    nvmlDevice_t parts[SIM_SLICES];
    unsigned count = nvml_mig_devices(&nvml_sim.device[index], parts);
    for (unsigned i = 0; i < count; i++) {
      struct mig_compute compute;
      if (nvml_compute_of(parts[i], &compute)) {
        mig_uuid_text(nvml_gpu(parts[i]), compute, text);
        if (strcasecmp(text, uuid) == 0) {
          *device = parts[i];
          return NVML_SUCCESS;
        }
      }
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device) {
  unsigned domain;
  unsigned bus;
  unsigned slot;
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!pciBusId || !device || sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  for (unsigned index = 0; index < nvml_sim.devices; index++) {
    if (domain == 0 && slot == 0 && nvml_gpu(&nvml_sim.device[index])->pci_bus == bus) {
      *device = &nvml_sim.device[index];
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}
