/* SPDX-License-Identifier: Apache-2.0
 *
 * What NVML says of processes: the share's own, by pids of the reader's namespace, and nothing of a
 * neighbour's. Which hold memory stands in the ledger; figures that only the driver has are asked of it
 * and filtered. Without a limit the answers are the driver's.
 */
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "hooks.h"
#include "nvml_processes.h"
#include "nvml_share.h"
#include "state.h"

#define NO_INSTANCE 0xFFFFFFFFU /* the instance ids of a GPU that is not partitioned */

enum { MOST_ENTRIES = 4096, PERCENT = 100 };

/* False: the driver's answer is the right one. */
static bool filters(nvmlDevice_t device, const void *count) {
  if (aq_depth > 0 || !count)
    return false;
  const struct aq_share *share = aq_nvml_share(device);
  return !share || aq_share_is_limited(share);
}

/* After a call of the driver's that fails for what is no fault of the caller's question. */
static nvmlReturn_t share_of(nvmlReturn_t asked, nvmlDevice_t device, struct aq_share **share) {
  if (asked != NVML_SUCCESS && asked != NVML_ERROR_INSUFFICIENT_SIZE)
    return asked;
  *share = aq_nvml_share(device);
  return *share ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

/* How all lists answer: the number that there is, and SUCCESS if there was room for them. */
static nvmlReturn_t counted(unsigned found, unsigned room, unsigned int *count) {
  *count = found;
  return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_narrow(struct aq_share *share, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
  struct aq_processes all;
  aq_processes_read(share, &all);
  for (unsigned i = 0; infos && i < all.count && i < *count; i++)
    infos[i] = (nvmlProcessInfo_v1_t){all.of[i].pid, all.of[i].bytes};
  return counted(all.count, infos ? *count : 0, count);
}

static nvmlReturn_t list_wide(struct aq_share *share, unsigned int *count, nvmlProcessInfo_t *infos) {
  struct aq_processes all;
  aq_processes_read(share, &all);
  for (unsigned i = 0; infos && i < all.count && i < *count; i++)
    infos[i] = (nvmlProcessInfo_t){all.of[i].pid, all.of[i].bytes, NO_INSTANCE, NO_INSTANCE};
  return counted(all.count, infos ? *count : 0, count);
}

#define COMPUTE_LIST(NAME, ENTRY, LIST)                                                                      \
  nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *count, ENTRY *infos) {                                \
    struct aq_share *share;                                                                                  \
    unsigned int none = 0;                                                                                   \
    if (!AQ_REAL(NAME))                                                                                      \
      return NVML_ERROR_NOT_SUPPORTED;                                                                       \
    if (!filters(device, count) || (*count && !infos))                                                       \
      return AQ_REAL(NAME)(device, count, infos);                                                            \
    nvmlReturn_t result = share_of(AQ_REAL(NAME)(device, &none, NULL), device, &share);                      \
    return result == NVML_SUCCESS ? LIST(share, count, infos) : result;                                      \
  }

COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, list_narrow)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, list_wide)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, list_wide)

/* Room for what the driver tells of everyone. */
struct listing {
  void *entries;
  unsigned count;
  size_t size; /* of an entry */
};

static bool open_listing(struct listing *listing, size_t size) {
  *listing = (struct listing){NULL, MOST_ENTRIES, size};
  listing->entries =
      mmap(NULL, MOST_ENTRIES * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return listing->entries != MAP_FAILED;
}

/* Drops what is not the share's. */
static nvmlReturn_t filter_listing(struct listing *listing, nvmlReturn_t result, nvmlDevice_t device,
                                   size_t pid_offset) {
  struct aq_share *share;
  struct aq_processes all;
  if (result != NVML_SUCCESS)
    return result;
  result = share_of(result, device, &share);
  if (result != NVML_SUCCESS)
    return result;
  aq_processes_read(share, &all);
  aq_processes_name(device, &all);
  listing->count = aq_processes_keep(&all, listing->entries, listing->count, listing->size, pid_offset);
  return NVML_SUCCESS;
}

/* Hands over what is left, to `out` with room for `*count`. */
static nvmlReturn_t close_listing(struct listing *listing, nvmlReturn_t result, unsigned int *count,
                                  void *out) {
  if (result == NVML_SUCCESS) {
    unsigned room = out ? *count : 0;
    result = counted(listing->count, room, count);
    if (result == NVML_SUCCESS && listing->count > 0)
      memcpy(out, listing->entries, listing->count * listing->size);
  }
  munmap(listing->entries, MOST_ENTRIES * listing->size);
  return result;
}

#define FILTERED_LIST(NAME, ENTRY, PID_OFFSET)                                                               \
  nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *count, ENTRY *infos) {                                \
    struct listing listing;                                                                                  \
    if (!AQ_REAL(NAME))                                                                                      \
      return NVML_ERROR_NOT_SUPPORTED;                                                                       \
    if (!filters(device, count) || (*count && !infos))                                                       \
      return AQ_REAL(NAME)(device, count, infos);                                                            \
    if (!open_listing(&listing, sizeof(ENTRY)))                                                              \
      return NVML_ERROR_MEMORY;                                                                              \
    nvmlReturn_t result = AQ_REAL(NAME)(device, &listing.count, (ENTRY *)listing.entries);                   \
    result = filter_listing(&listing, result, device, PID_OFFSET);                                           \
    return close_listing(&listing, result, count, infos);                                                    \
  }

FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t,
              offsetof(nvmlProcessInfo_v1_t, pid))
FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, offsetof(nvmlProcessInfo_t, pid))
FILTERED_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, offsetof(nvmlProcessInfo_t, pid))
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t,
              offsetof(nvmlProcessInfo_v1_t, pid))
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t, offsetof(nvmlProcessInfo_t, pid))
FILTERED_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, offsetof(nvmlProcessInfo_t, pid))
FILTERED_LIST(nvmlDeviceGetEncoderSessions, nvmlEncoderSessionInfo_t, offsetof(nvmlEncoderSessionInfo_t, pid))
FILTERED_LIST(nvmlDeviceGetFBCSessions, nvmlFBCSessionInfo_t, offsetof(nvmlFBCSessionInfo_t, pid))
FILTERED_LIST(nvmlDeviceGetAccountingPids, unsigned int, 0)

static nvmlReturn_t detail_compute(struct aq_share *share, nvmlProcessDetailList_t *list) {
  struct aq_processes all;
  unsigned room = list->procArray ? list->numProcArrayEntries : 0;
  aq_processes_read(share, &all);
  for (unsigned i = 0; i < all.count && i < room; i++)
    list->procArray[i] =
        (nvmlProcessDetail_v1_t){all.of[i].pid, all.of[i].bytes, NO_INSTANCE, NO_INSTANCE, 0};
  return counted(all.count, room, &list->numProcArrayEntries);
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
  struct listing listing;
  struct aq_share *share;
  if (!AQ_REAL(nvmlDeviceGetRunningProcessDetailList))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!filters(device, list) || (list->numProcArrayEntries && !list->procArray))
    return AQ_REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
  if (!open_listing(&listing, sizeof(nvmlProcessDetail_v1_t)))
    return NVML_ERROR_MEMORY;
  nvmlProcessDetailList_t whole = {list->version, list->mode, listing.count, listing.entries};
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &whole);
  listing.count = whole.numProcArrayEntries;
  if (list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL) {
    munmap(listing.entries, MOST_ENTRIES * listing.size);
    result = share_of(result, device, &share);
    return result == NVML_SUCCESS ? detail_compute(share, list) : result;
  }
  result = filter_listing(&listing, result, device, offsetof(nvmlProcessDetail_v1_t, pid));
  return close_listing(&listing, result, &list->numProcArrayEntries, list->procArray);
}

/* The share's own samples since `last_seen`; NOT_FOUND if there are none, as the driver has it. */
static nvmlReturn_t own_samples(nvmlDevice_t device, unsigned long long last_seen, struct listing *listing) {
  nvmlReturn_t result =
      AQ_REAL(nvmlDeviceGetProcessUtilization)(device, listing->entries, &listing->count, last_seen);
  result = filter_listing(listing, result, device, offsetof(nvmlProcessUtilizationSample_t, pid));
  return result == NVML_SUCCESS && listing->count == 0 ? NVML_ERROR_NOT_FOUND : result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen) {
  struct listing listing;
  if (!AQ_REAL(nvmlDeviceGetProcessUtilization))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!filters(device, count))
    return AQ_REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, last_seen);
  if (!open_listing(&listing, sizeof(*samples)))
    return NVML_ERROR_MEMORY;
  return close_listing(&listing, own_samples(device, last_seen, &listing), count, samples);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info) {
  struct listing listing;
  if (!AQ_REAL(nvmlDeviceGetProcessesUtilizationInfo))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!filters(device, info))
    return AQ_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
  if (!open_listing(&listing, sizeof(nvmlProcessUtilizationInfo_v1_t)))
    return NVML_ERROR_MEMORY;
  nvmlProcessesUtilizationInfo_t whole = {info->version, listing.count, info->lastSeenTimeStamp,
                                          listing.entries};
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &whole);
  listing.count = whole.processSamplesCount;
  result = filter_listing(&listing, result, device, offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
  if (result == NVML_SUCCESS && listing.count == 0)
    result = NVML_ERROR_NOT_FOUND;
  return close_listing(&listing, result, &info->processSamplesCount, info->procUtilArray);
}

/* Adds up the newest sample of each process. */
static nvmlUtilization_t sum_of(const struct listing *listing) {
  const nvmlProcessUtilizationSample_t *samples = listing->entries;
  nvmlUtilization_t sum = {0, 0};
  for (unsigned i = 0; i < listing->count; i++) {
    bool newest = true;
    for (unsigned j = 0; j < listing->count && newest; j++)
      newest = samples[j].pid != samples[i].pid || samples[j].timeStamp < samples[i].timeStamp ||
               (samples[j].timeStamp == samples[i].timeStamp && j >= i);
    if (newest) {
      sum.gpu += samples[i].smUtil < PERCENT ? samples[i].smUtil : PERCENT;
      sum.memory += samples[i].memUtil < PERCENT ? samples[i].memUtil : PERCENT;
    }
  }
  return sum;
}

/* What of the GPU's use is the share's. Where the driver tells nothing by process: nothing, unless the
 * GPU is idle as a whole. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
  struct listing listing;
  nvmlUtilization_t whole;
  nvmlUtilization_t own = {0, 0};
  if (!AQ_REAL(nvmlDeviceGetUtilizationRates))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!filters(device, utilization))
    return AQ_REAL(nvmlDeviceGetUtilizationRates)(device, utilization);
  nvmlReturn_t result = AQ_REAL(nvmlDeviceGetUtilizationRates)(device, &whole);
  if (result != NVML_SUCCESS)
    return result;
  if (!open_listing(&listing, sizeof(nvmlProcessUtilizationSample_t)))
    return NVML_ERROR_MEMORY;
  result =
      AQ_REAL(nvmlDeviceGetProcessUtilization) ? own_samples(device, 0, &listing) : NVML_ERROR_NOT_SUPPORTED;
  if (result == NVML_SUCCESS)
    own = sum_of(&listing);
  munmap(listing.entries, MOST_ENTRIES * listing.size);
  if (result == NVML_ERROR_NOT_FOUND || (whole.gpu == 0 && whole.memory == 0))
    result = NVML_SUCCESS;
  if (result != NVML_SUCCESS)
    return result;
  utilization->gpu = own.gpu < whole.gpu ? own.gpu : whole.gpu;
  utilization->memory = own.memory < whole.memory ? own.memory : whole.memory;
  return NVML_SUCCESS;
}

/* Percentages of the whole GPU over time: the driver itself has none for a partition. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen,
                                  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples) {
  if (!AQ_REAL(nvmlDeviceGetSamples))
    return NVML_ERROR_NOT_SUPPORTED;
  bool whole = type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES;
  if (!whole || !filters(device, count))
    return AQ_REAL(nvmlDeviceGetSamples)(device, type, last_seen, value_type, count, samples);
  struct aq_share *share;
  nvmlValueType_t unused;
  unsigned int none = 0;
  nvmlReturn_t asked = AQ_REAL(nvmlDeviceGetSamples)(device, type, last_seen, &unused, &none, NULL);
  nvmlReturn_t result = share_of(asked, device, &share);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

/* Sets `*named` to what NVML calls the share's process `pid`. */
static nvmlReturn_t name_of(nvmlDevice_t device, unsigned pid, unsigned *named) {
  struct aq_processes all;
  struct aq_share *share = aq_nvml_share(device);
  if (!share)
    return NVML_ERROR_NO_PERMISSION;
  aq_processes_read(share, &all);
  aq_processes_name(device, &all);
  const struct aq_process *process = aq_process_of(&all, pid);
  *named = process ? process->named : 0;
  return *named ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats) {
  unsigned named;
  if (!AQ_REAL(nvmlDeviceGetAccountingStats))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!filters(device, stats))
    return AQ_REAL(nvmlDeviceGetAccountingStats)(device, pid, stats);
  nvmlReturn_t result = name_of(device, pid, &named);
  return result == NVML_SUCCESS ? AQ_REAL(nvmlDeviceGetAccountingStats)(device, named, stats) : result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
  unsigned named;
  if (!AQ_REAL(nvmlDeviceGetAccountingStats_v2))
    return NVML_ERROR_NOT_SUPPORTED;
  if (!filters(device, stats))
    return AQ_REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
  nvmlReturn_t result = name_of(device, stats->pid, &named);
  if (result != NVML_SUCCESS)
    return result;
  nvmlAccountingStats_v2_t whole = *stats;
  whole.pid = named;
  result = AQ_REAL(nvmlDeviceGetAccountingStats_v2)(device, &whole);
  if (result == NVML_SUCCESS) {
    whole.pid = stats->pid;
    *stats = whole;
  }
  return result;
}
