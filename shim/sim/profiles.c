/* SPDX-License-Identifier: Apache-2.0
 *
 * Totals are what nvidia-smi prints for these cards (driver 535 and later).
 * total - reserved is what cuDeviceTotalMem was seen to report (as PyTorch's
 * total_memory: 39.39, 79.15, 79.11, 139.8, 22.05, 14.56 and 178.35 GiB), cut to
 * whole 2 MiB pages. Context sizes are of the right order and not measured:
 * set them with `aliquot-sim init --context-mib`. Architecture numbers are
 * NVML_DEVICE_ARCH_*; compute capability, SMs, clocks, caches, power, links: NVIDIA's data sheets and the
 * CUDA programming guide's table of compute capabilities.
 *
 * Drivers: of each branch one; the CUDA version that a branch speaks is in the release notes of the CUDA
 * toolkit (table of driver versions).
 */
#include "profiles.h"

#include <stddef.h>

#define KIB 1024U
#define MIB (1024U * KIB)

const struct sim_profile sim_profiles[] = {
    {"a100-40gb", "NVIDIA A100-SXM4-40GB",
     40960,       622,
     412,         0x20b010de,
     8,           0,
     7,           108,
     2048,        5120,
     1410000,     1215000,
     40 * MIB,    164 * KIB,
     400,         4,
     12,          &mig_a100_40gb},
    {"a100-80gb", "NVIDIA A100-SXM4-80GB",
     81920,       870,
     412,         0x20b210de,
     8,           0,
     7,           108,
     2048,        5120,
     1410000,     1593000,
     40 * MIB,    164 * KIB,
     400,         4,
     12,          &mig_a100_80gb},
    {"h100",   "NVIDIA H100 80GB HBM3",
     81559,    551,
     528,      0x233010de,
     9,        0,
     9,        132,
     2048,     5120,
     1980000,  2619000,
     50 * MIB, 228 * KIB,
     700,      5,
     18,       &mig_h100_80gb},
    {"h200", "NVIDIA H200", 143771,  607,     528,      0x233510de, 9,   0, 9,  132,
     2048,   6144,          1980000, 3201000, 60 * MIB, 228 * KIB,  700, 5, 18, &mig_h200},
    {"l4", "NVIDIA L4", 23034,   456,     206,      0x27b810de, 8,  9, 8, 58,
     1536, 192,         2040000, 6251000, 48 * MIB, 100 * KIB,  72, 4, 0, NULL},
    {"t4", "Tesla T4", 15360,   448,     104,     0x1eb810de, 7,  5, 6, 40,
     1024, 256,        1590000, 5001000, 4 * MIB, 64 * KIB,   70, 3, 0, NULL},
    {"b200", "NVIDIA B200", 183359,  729,     600,       0x290110de, 10,   0, 10, 148,
     2048,   7680,          1965000, 3996000, 126 * MIB, 228 * KIB,  1000, 5, 18, NULL},
};
const unsigned sim_profile_count = sizeof sim_profiles / sizeof *sim_profiles;

const struct sim_driver sim_drivers[] = {
    {535, "535.183.06", 12020},
    {570, "570.148.08", 12080},
    {580, "580.95.05", 13000},
    {595, "595.45.04", 13020},
};
const unsigned sim_driver_count = sizeof sim_drivers / sizeof *sim_drivers;

uint64_t profile_capacity(uint32_t profile) {
  return (uint64_t)(sim_profiles[profile].total_mib - sim_profiles[profile].reserved_mib) << 20;
}
