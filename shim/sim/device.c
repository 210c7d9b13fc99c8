/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: what they are and what they can.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "driver.h"
#include "mig.h"

bool driver_is_device(CUdevice device) {
  return device >= 0 && (unsigned)device < driver.devices;
}

int driver_ordinal(uint32_t gpu) {
  for (unsigned device = 0; device < driver.devices; device++) {
    if (driver.gpu[device] == gpu) {
      return (int)device;
    }
  }
  return CU_DEVICE_INVALID;
}

const struct sim_gpu *driver_gpu(CUdevice device) {
  return &driver.books.node.state->gpu[driver.gpu[device]];
}

/* Lock the driver, check the device and that the output can be written. */
static CUresult enter_device(CUdevice device, const void *output) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!output) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  return driver_is_device(device) ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

static const struct sim_profile *profile_of(CUdevice device) {
  return driver_profile(driver.gpu[device]);
}

CUresult cuDriverGetVersion(int *driverVersion) {
  if (!driverVersion) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *driverVersion = driver_cuda_version();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!count) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *count = (int)driver.devices;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  CUresult result = enter_device(ordinal, device);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *device = ordinal;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
  CUresult result = enter_device(dev, name);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (len <= 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  snprintf(name, (size_t)len, "Simulated %s", profile_of(dev)->product);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
  CUresult result = enter_device(dev, uuid);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct mig_compute compute;
  uint32_t part = driver.books.node.part;
  if (part != 0 && mig_part_compute(driver.books.node.state, part, &compute)) {
    mig_uuid(driver_gpu(dev), compute, (uint8_t *)uuid->bytes);
  } else {
    memcpy(uuid->bytes, driver_gpu(dev)->uuid, sizeof uuid->bytes);
  }
  return driver_leave(CUDA_SUCCESS);
}

/* The older one knows no MIG devices (cuda.h). */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
  CUresult result = enter_device(dev, uuid);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  memcpy(uuid->bytes, driver_gpu(dev)->uuid, sizeof uuid->bytes);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  CUresult result = enter_device(dev, bytes);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  *bytes = driver_capacity(driver.gpu[dev]);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
  CUresult result = enter_device(dev, bytes);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  uint64_t capacity = driver_capacity(driver.gpu[dev]);
  *bytes = capacity > UINT32_MAX ? UINT32_MAX : (unsigned)capacity;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
  CUresult result = enter_device(dev, major);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!minor) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *major = (int)profile_of(dev)->major;
  *minor = (int)profile_of(dev)->minor;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
  CUresult result = enter_device(dev, pciBusId);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  char text[SIM_BUS_TEXT];
  node_bus_text(driver_gpu(dev), text);
  const char *shortened = text + 4; /* CUDA gives four digits of the domain, NVML eight */
  if (len < (int)strlen(shortened) + 1) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  memcpy(pciBusId, shortened, strlen(shortened) + 1);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  unsigned domain;
  unsigned bus;
  unsigned slot;
  if (!dev || !pciBusId || sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (unsigned device = 0; device < driver.devices; device++) {
    if (domain == 0 && slot == 0 && driver_gpu((CUdevice)device)->pci_bus == bus) {
      *dev = (CUdevice)device;
      return driver_leave(CUDA_SUCCESS);
    }
  }
  return driver_leave(CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
  CUresult result = enter_device(dev, canAccessPeer);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!driver_is_device(peerDev)) {
    return driver_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  *canAccessPeer = 0;
  return driver_leave(CUDA_SUCCESS);
}

/* The same on every GPU that has a profile. */
static const struct {
  CUdevice_attribute attribute;
  int value;
} common_attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048},
};

static int profile_attribute(CUdevice device, CUdevice_attribute attribute) {
  const struct sim_gpu *gpu = driver_gpu(device);
  const struct sim_profile *profile = profile_of(device);
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
    return (int)profile->major;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
    return (int)profile->minor;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    return (int)profile->multiprocessors;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
    return (int)profile->threads_per_multiprocessor;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
    return (int)profile->threads_per_multiprocessor / 64;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
    return (int)profile->clock_khz;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
    return (int)profile->memory_clock_khz;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
    return (int)profile->bus_width_bits;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
    return (int)profile->l2_bytes;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    return (int)profile->shared_per_multiprocessor;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    return (int)profile->shared_per_multiprocessor - 1024;
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
    return (int)gpu->pci_bus;
  case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
    return (int)profile->l2_bytes;
  case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    return profile->major >= 9;
  case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
    return gpu->numa_node;
  default:
    return 0; /* not there, or a "no" */
  }
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
  CUresult result = enter_device(dev, pi);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if ((int)attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (size_t i = 0; i < sizeof common_attributes / sizeof *common_attributes; i++) {
    if (common_attributes[i].attribute == attrib) {
      *pi = common_attributes[i].value;
      return driver_leave(CUDA_SUCCESS);
    }
  }
  *pi = profile_attribute(dev, attrib);
  return driver_leave(CUDA_SUCCESS);
}
