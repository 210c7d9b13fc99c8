/* SPDX-License-Identifier: Apache-2.0
 *
 * An NVML for what the simulated one does not tell: figures by process, of one GPU that others use, too.
 *
 *   NVML_UUID       the GPU's
 *   NVML_PROCESSES  pids, comma separated: each has one sample, session and so on
 *
 * The n-th process has a use of 10 * n percent and 1000 * n bytes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_api.h"

#define API __attribute__((visibility("default")))

enum { MOST = 64 };

static int gpu;

static unsigned processes(unsigned *pids) {
  char text[1024];
  unsigned count = 0;
  snprintf(text, sizeof(text), "%s", getenv("NVML_PROCESSES"));
  for (char *word = strtok(text, ","); word && count < MOST; word = strtok(NULL, ","))
    pids[count++] = (unsigned)atoi(word);
  return count;
}

static nvmlReturn_t room_for(unsigned found, unsigned *count, const void *entries) {
  unsigned room = entries ? *count : 0;
  *count = found;
  return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void) {
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
  *device = (nvmlDevice_t)(void *)&gpu;
  return index == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  (void)device;
  snprintf(uuid, length, "%s", getenv("NVML_UUID"));
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
  (void)device;
  *utilization = (nvmlUtilization_t){95, 90};
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                      unsigned long long last_seen, nvmlValueType_t *value_type,
                                      unsigned int *count, nvmlSample_t *samples) {
  (void)device, (void)type, (void)last_seen, (void)samples;
  *value_type = 1;
  *count = 7;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
  (void)device;
  *memory = (nvmlBAR1Memory_t){1ULL << 37, (1ULL << 37) - (1ULL << 35), 1ULL << 35};
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
  (void)device;
  memset(attributes, 0, sizeof(*attributes));
  attributes->multiprocessorCount = 14;
  attributes->memorySizeMB = 20096;
  return NVML_SUCCESS;
}

#define LIST(NAME, ENTRY, FILL)                                                                              \
  API nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *count, ENTRY *infos) {                            \
    unsigned pids[MOST];                                                                                     \
    unsigned found = processes(pids);                                                                        \
    (void)device;                                                                                            \
    for (unsigned i = 0; infos && i < found && i < *count; i++)                                              \
      infos[i] = FILL;                                                                                       \
    return room_for(found, count, infos);                                                                    \
  }

#define NARROW ((nvmlProcessInfo_v1_t){pids[i], 1000 * (i + 1)})
#define WIDE   ((nvmlProcessInfo_t){pids[i], 1000 * (i + 1), 0, 0})
LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, NARROW)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, WIDE)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, WIDE)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, NARROW)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, WIDE)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, WIDE)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, NARROW)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t, WIDE)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, WIDE)
LIST(nvmlDeviceGetAccountingPids, unsigned int, pids[i])
LIST(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t, ((nvmlEncoderSessionInfo_t){i, pids[i], {0}}))
LIST(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t, ((nvmlFBCSessionInfo_t){i, pids[i], {0}}))

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                 unsigned int *count, unsigned long long last_seen) {
  unsigned pids[MOST];
  unsigned found = processes(pids);
  (void)device;
  for (unsigned i = 0; samples && i < found && i < *count; i++)
    samples[i] = (nvmlProcessUtilizationSample_t){pids[i], last_seen + 1, 10 * (i + 1), i + 1, 0, 0};
  return room_for(found, count, samples);
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                       nvmlProcessesUtilizationInfo_t *info) {
  unsigned pids[MOST];
  unsigned found = processes(pids);
  (void)device;
  for (unsigned i = 0; info->procUtilArray && i < found && i < info->processSamplesCount; i++)
    info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){1, pids[i], 10 * (i + 1), i + 1, 0, 0, 0, 0};
  return room_for(found, &info->processSamplesCount, info->procUtilArray);
}

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
  unsigned pids[MOST];
  unsigned found = processes(pids);
  (void)device;
  if (list->mode > NVML_PROCESS_MODE_ALL)
    return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; list->procArray && i < found && i < list->numProcArrayEntries; i++)
    list->procArray[i] = (nvmlProcessDetail_v1_t){pids[i], 1000 * (i + 1), 0, 0, 0};
  return room_for(found, &list->numProcArrayEntries, list->procArray);
}

API nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
  unsigned pids[MOST];
  unsigned found = processes(pids);
  (void)device;
  for (unsigned i = 0; i < found; i++)
    if (pids[i] == stats->pid) {
      stats->gpuUtilization = 10 * (i + 1);
      stats->maxMemoryUsage = 1000 * (i + 1);
      return NVML_SUCCESS;
    }
  return NVML_ERROR_NOT_FOUND;
}
