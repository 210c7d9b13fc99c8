/* SPDX-License-Identifier: Apache-2.0
 *
 * The kinds of GPU that can be simulated.
 */
#ifndef SIM_PROFILES_H
#define SIM_PROFILES_H

#include <stdint.h>

#include "mig_cards.h"

/* A driver and the CUDA that it speaks. */
struct sim_driver {
  unsigned branch;
  const char *version;
  int cuda; /* as cuDriverGetVersion says it */
};

extern const struct sim_driver sim_drivers[];
extern const unsigned sim_driver_count;
#define SIM_DRIVER_DEFAULT 580U

struct sim_profile {
  const char *name;
  const char *product; /* as NVML names it, after our "Simulated " */
  uint32_t total_mib;
  uint32_t reserved_mib; /* part of the total that no program gets */
  uint32_t context_mib;
  uint32_t pci_device;        /* vendor id in the low half */
  uint32_t major, minor;      /* compute capability */
  uint32_t nvml_architecture; /* NVML_DEVICE_ARCH_* */
  uint32_t multiprocessors;
  uint32_t threads_per_multiprocessor;
  uint32_t bus_width_bits;
  uint32_t clock_khz, memory_clock_khz;
  uint32_t l2_bytes;
  uint32_t shared_per_multiprocessor;
  uint32_t watts; /* of the whole board, at most */
  uint32_t pcie_generation;
  uint32_t nvlinks;           /* to a switch, if there is another such GPU */
  const struct mig_card *mig; /* NULL: cannot be partitioned */
};

extern const struct sim_profile sim_profiles[];
extern const unsigned sim_profile_count;

/* Bytes that all programs together can have: what cuDeviceTotalMem reports. */
uint64_t profile_capacity(uint32_t profile);

#endif
