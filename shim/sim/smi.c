/* SPDX-License-Identifier: Apache-2.0
 *
 * aliquot-smi: shows what NVML tells, where nvidia-smi is not at hand. Works with any libnvidia-ml.so.1.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* drivers of all ages shall do */
#include <nvml.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

static const char usage[] =
    "usage: aliquot-smi                     GPUs, their memory and use, and the processes on them\n"
    "       aliquot-smi -L                  names and UUIDs\n"
    "       aliquot-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]\n"
    "       aliquot-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]\n"
    "       aliquot-smi [-i GPU] -c DEFAULT|PROHIBITED|EXCLUSIVE_PROCESS\n"
    "       aliquot-smi compute-policy [-i GPU] --set-timeslice 0|1|2|3   default, short, medium, long\n"
    "       aliquot-smi compute-policy -l\n";

int smi_failed(const char *what, nvmlReturn_t error) {
  fprintf(stderr, "aliquot-smi: %s: %s\n", what, nvmlErrorString(error));
  return error == NVML_ERROR_UNINITIALIZED ? 1 : (int)error;
}

unsigned smi_processes(nvmlDevice_t device, nvmlProcessInfo_t *infos) {
  unsigned count = SMI_PROCESSES;
  nvmlReturn_t error = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos);
  return error == NVML_SUCCESS ? count : 0;
}

void smi_process_name(unsigned pid, char *name, size_t size) {
  if (nvmlSystemGetProcessName(pid, name, (unsigned)size) != NVML_SUCCESS) {
    snprintf(name, size, "[Not Found]");
  }
}

static int list(unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    nvmlDevice_t device;
    char name[96] = "";
    char uuid[96] = "";
    nvmlReturn_t error = nvmlDeviceGetHandleByIndex_v2(i, &device);
    if (error == NVML_SUCCESS) {
      error = nvmlDeviceGetName(device, name, sizeof name);
    }
    if (error == NVML_SUCCESS) {
      error = nvmlDeviceGetUUID(device, uuid, sizeof uuid);
    }
    if (error != NVML_SUCCESS) {
      printf("Unable to determine the device handle for GPU%u: %s\n", i, nvmlErrorString(error));
      continue;
    }
    printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
    smi_list_mig(device);
  }
  return 0;
}

static void print_gpu(unsigned index, nvmlDevice_t device) {
  nvmlMemory_t memory = {0};
  nvmlUtilization_t use = {0};
  nvmlPciInfo_t pci = {0};
  char name[96] = "";
  unsigned celsius = 0;
  unsigned power = 0;
  unsigned limit = 0;
  unsigned long long ecc = 0;
  nvmlReturn_t error = nvmlDeviceGetName(device, name, sizeof name);
  if (error != NVML_SUCCESS) {
    printf("| %3u  %-70s |\n", index, nvmlErrorString(error));
    return;
  }
  nvmlDeviceGetPciInfo_v3(device, &pci);
  nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &celsius);
  nvmlDeviceGetPowerUsage(device, &power);
  nvmlDeviceGetEnforcedPowerLimit(device, &limit);
  nvmlDeviceGetMemoryInfo(device, &memory);
  nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &ecc);
  bool known = nvmlDeviceGetUtilizationRates(device, &use) == NVML_SUCCESS;
  char percent[8] = "N/A";
  if (known) {
    snprintf(percent, sizeof percent, "%u%%", use.gpu % 1000);
  }
  printf("| %3u  %-38.38s  %-16.16s  ECC %8llu |\n", index, name, pci.busId, ecc);
  printf("|      %3uC  %4uW / %4uW  %9lluMiB / %9lluMiB  GPU %4s %11s |\n", celsius, power / 1000,
         limit / 1000, memory.used >> 20, memory.total >> 20, percent, "");
}

static void print_processes(unsigned count) {
  static nvmlProcessInfo_t infos[SMI_PROCESSES];
  bool any = false;
  printf("| GPU        PID  Process name                               GPU memory %5s |\n", "");
  for (unsigned i = 0; i < count; i++) {
    nvmlDevice_t device;
    if (nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_SUCCESS) {
      continue;
    }
    unsigned found = smi_processes(device, infos);
    for (unsigned p = 0; p < found; p++) {
      char name[256];
      smi_process_name(infos[p].pid, name, sizeof name);
      printf("| %3u %10u  %-40.40s %9lluMiB %5s |\n", i, infos[p].pid, name, infos[p].usedGpuMemory >> 20,
             "");
      any = true;
    }
  }
  if (!any) {
    printf("| %-75s |\n", "no running processes found");
  }
}

static const char line[] = "+-----------------------------------------------------------------------------+";

static int screen(unsigned count) {
  char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "";
  int cuda = 0;
  nvmlSystemGetDriverVersion(driver, sizeof driver);
  nvmlSystemGetCudaDriverVersion_v2(&cuda);
  printf("%s\n| aliquot-smi      driver version: %-18.18s CUDA version: %2d.%-6d |\n%s\n", line, driver,
         cuda / 1000, cuda % 1000 / 10, line);
  for (unsigned i = 0; i < count; i++) {
    nvmlDevice_t device;
    nvmlReturn_t error = nvmlDeviceGetHandleByIndex_v2(i, &device);
    if (error == NVML_SUCCESS) {
      print_gpu(i, device);
      smi_show_mig(i, device);
    } else {
      printf("| %3u  %-70s |\n", i, nvmlErrorString(error));
    }
  }
  printf("%s\n", line);
  print_processes(count);
  printf("%s\n", line);
  return 0;
}

int main(int argc, char **argv) {
  struct smi_query query = {0};
  struct smi_set set = {0};
  bool names_only = false;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "-L") == 0 || strcmp(argv[i], "--list-gpus") == 0) {
      names_only = true;
    } else if (!smi_take_set(&set, argc, argv, &i) && !smi_take_query(&query, argv[i])) {
      fputs(usage, strcmp(argv[i], "--help") == 0 ? stdout : stderr);
      return strcmp(argv[i], "--help") == 0 ? 0 : 2;
    }
  }
  nvmlReturn_t error = nvmlInit_v2();
  unsigned count = 0;
  if (error == NVML_SUCCESS) {
    error = nvmlDeviceGetCount_v2(&count);
  }
  if (error != NVML_SUCCESS) {
    return smi_failed("cannot talk to the driver", error);
  }
  bool sets = set.mode || set.slice || set.list;
  int status = sets           ? smi_set(&set, count)
               : query.fields ? smi_query(&query, count)
               : names_only   ? list(count)
                              : screen(count);
  nvmlShutdown();
  return status;
}
