/* SPDX-License-Identifier: Apache-2.0
 *
 * How much a GPU is used, and by whom: from the turns that processes had (schedule.h). Real drivers tell it
 * by sampling periods of 1/6 s to 1 s, in whole percent, some time later; `aliquot-sim set` says how this one
 * does.
 */
#include <string.h>
#include <time.h>

#include "meter.h"
#include "nvml_sim.h"
#include "schedule.h"
#include "slots.h"

#define PERIOD_US (SIM_PERIOD_NS / 1000)

/* The period that is told of now. */
static uint64_t told_period(void) {
  uint64_t lag = (uint64_t)atomic_load(&nvml_sim.node.state->nvml_lag_ms) * 1000000;
  return (schedule_now() - lag) / SIM_PERIOD_NS - 1;
}

static uint64_t busy_in(uint32_t gpu, uint32_t slot, uint64_t period) {
  return slot == 0 ? schedule_busy(&nvml_sim.node, gpu, period)
                   : schedule_used(&nvml_sim.node, slot, gpu, period);
}

static unsigned percent(uint64_t busy) {
  unsigned step = atomic_load(&nvml_sim.node.state->nvml_step);
  unsigned value = (unsigned)((busy * 100 + SIM_PERIOD_NS / 2) / SIM_PERIOD_NS);
  value = value < 100 ? value : 100;
  return step > 1 ? value / step * step : value;
}

/* Of the last sixth of a second until now: its part of the last period, this one, and the turn under way. */
static uint64_t exact_busy(uint32_t gpu, uint32_t slot) {
  uint64_t now = schedule_now();
  uint64_t period = now / SIM_PERIOD_NS;
  uint64_t part = now % SIM_PERIOD_NS;
  struct schedule_turn turn = schedule_turn(&nvml_sim.node, slot ? slot : 1, gpu);
  uint64_t before = busy_in(gpu, slot, period - 1);
  uint64_t busy =
      busy_in(gpu, slot, period) + (uint64_t)((__uint128_t)before * (SIM_PERIOD_NS - part) / SIM_PERIOD_NS);
  if ((slot == 0 && !turn.idle) || (slot != 0 && turn.own)) {
    uint64_t start = turn.start > now - part ? turn.start : now - part;
    busy += now > start ? now - start : 0;
  }
  return busy;
}

unsigned nvml_utilization(uint32_t gpu, uint32_t slot) {
  schedule_settle(&nvml_sim.node, gpu, 0, schedule_now());
  bool exact = atomic_load(&nvml_sim.node.state->nvml_exact);
  return percent(exact ? exact_busy(gpu, slot) : busy_in(gpu, slot, told_period()));
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
  nvmlReturn_t result = nvml_ready_unless_mig(device, utilization);
  if (result == NVML_SUCCESS) {
    *utilization = (nvmlUtilization_t){.gpu = nvml_utilization(device->gpu, 0)};
  }
  return result;
}

/* --- by time --- */

/* Periods count on CLOCK_MONOTONIC; NVML's time stamps are of the wall clock. */
static uint64_t end_of_us(uint64_t period) {
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  uint64_t wall_ns = (uint64_t)wall.tv_sec * 1000000000ULL + (uint64_t)wall.tv_nsec;
  return (wall_ns - schedule_now() + (period + 1) * SIM_PERIOD_NS) / 1000;
}

static unsigned periods_since(uint64_t last_us, uint64_t told, unsigned most) {
  uint64_t end = end_of_us(told);
  uint64_t new = last_us >= end ? 0 : (end - last_us + PERIOD_US / 2) / PERIOD_US;
  return new < most ? (unsigned)new : most;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long lastSeenTimeStamp, nvmlValueType_t *sampleValType,
                                  unsigned int *sampleCount, nvmlSample_t *samples) {
  nvmlReturn_t result = nvml_ready_unless_mig(device, sampleCount);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!sampleValType || (samples && *sampleCount == 0)) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  *sampleValType = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (!samples) {
    *sampleCount = SIM_GPU_PERIODS - 2;
    return NVML_SUCCESS;
  }
  schedule_settle(&nvml_sim.node, device->gpu, 0, schedule_now());
  uint64_t told = told_period();
  unsigned fresh = periods_since(lastSeenTimeStamp, told, SIM_GPU_PERIODS - 2);
  fresh = fresh < *sampleCount ? fresh : *sampleCount;
  for (unsigned i = 0; i < fresh; i++) {
    uint64_t period = told - fresh + 1 + i;
    unsigned value = type == NVML_GPU_UTILIZATION_SAMPLES ? percent(busy_in(device->gpu, 0, period)) : 0;
    samples[i] = (nvmlSample_t){.timeStamp = end_of_us(period), .sampleValue = {.uiVal = value}};
  }
  *sampleCount = fresh;
  return fresh > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* --- by process --- */

#define MOST_PERIODS 6U /* a second of samples is kept */

struct use {
  unsigned pid;
  unsigned percent;
};

/* Those that used the GPU in the periods since `last_us`, up to a second back; returns how many there are. */
static unsigned users(uint32_t gpu, uint64_t last_us, uint64_t told, struct use *uses, unsigned room) {
  const struct node *node = &nvml_sim.node;
  unsigned periods = periods_since(last_us, told, MOST_PERIODS);
  unsigned count = 0;
  slots_sweep(node, gpu, SIM_ANY, 0);
  uint32_t last = atomic_load(&node->state->slots_used);
  for (uint32_t slot = 1; slot <= last && periods > 0; slot++) {
    uint64_t busy = 0;
    if (!(atomic_load(&node->state->slot[slot].life) & 1)) {
      continue;
    }
    for (unsigned i = 0; i < periods; i++) {
      busy += busy_in(gpu, slot, told - i);
    }
    bool exact = atomic_load(&node->state->nvml_exact);
    busy = exact ? exact_busy(gpu, slot) : busy / periods;
    unsigned pid = busy > 0 ? slots_pid(node, slot) : 0;
    if (pid == 0 || percent(busy) == 0) {
      continue;
    }
    if (count < room) {
      uses[count] = (struct use){.pid = pid, .percent = percent(busy)};
    }
    count++;
  }
  return count;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                             unsigned int *processSamplesCount,
                                             unsigned long long lastSeenTimeStamp) {
  struct use uses[256];
  nvmlReturn_t result = nvml_ready_unless_mig(device, processSamplesCount);
  if (result != NVML_SUCCESS) {
    return result;
  }
  schedule_settle(&nvml_sim.node, device->gpu, 0, schedule_now());
  uint64_t told = told_period();
  unsigned room = *processSamplesCount < 256 ? *processSamplesCount : 256;
  unsigned count = users(device->gpu, lastSeenTimeStamp, told, uses, utilization ? room : 0);
  if (count == 0) {
    return NVML_ERROR_NOT_FOUND;
  }
  *processSamplesCount = !utilization || count <= room ? count : room;
  for (unsigned i = 0; utilization && i < *processSamplesCount; i++) {
    utilization[i] = (nvmlProcessUtilizationSample_t){
        .pid = uses[i].pid, .timeStamp = end_of_us(told), .smUtil = uses[i].percent};
  }
  return utilization ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *procesesUtilInfo) {
  struct use uses[256];
  nvmlReturn_t result = nvml_ready_unless_mig(device, procesesUtilInfo);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (procesesUtilInfo->version != nvmlProcessesUtilizationInfo_v1) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  schedule_settle(&nvml_sim.node, device->gpu, 0, schedule_now());
  uint64_t told = told_period();
  unsigned room = procesesUtilInfo->procUtilArray ? procesesUtilInfo->processSamplesCount : 0;
  unsigned count = users(device->gpu, procesesUtilInfo->lastSeenTimeStamp, told, uses, 256);
  if (count == 0) {
    return NVML_ERROR_NOT_FOUND;
  }
  count = count < 256 ? count : 256;
  procesesUtilInfo->processSamplesCount = count;
  if (count > room) {
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  for (unsigned i = 0; i < count; i++) {
    procesesUtilInfo->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
        .timeStamp = end_of_us(told), .pid = uses[i].pid, .smUtil = uses[i].percent};
  }
  return NVML_SUCCESS;
}

/* --- accounting: of those who run --- */

nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
  nvmlReturn_t result = nvml_ready_for(device, mode);
  if (result == NVML_SUCCESS) {
    bool partitioned = mig_is_on(mig_word(nvml_sim.node.state, device->gpu)); /* nvml.h: disabled then */
    *mode = partitioned ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int *bufferSize) {
  nvmlReturn_t result = nvml_ready_unless_mig(device, bufferSize);
  if (result == NVML_SUCCESS) {
    *bufferSize = SIM_SLOTS;
  }
  return result;
}

static bool has_context(uint32_t slot, uint32_t gpu) {
  const struct sim_slot *one = &nvml_sim.node.state->slot[slot];
  return (atomic_load(&one->life) & 1) && atomic_load(&one->holding[gpu].contexts) > 0;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
  nvmlReturn_t result = nvml_ready_unless_mig(device, count);
  if (result != NVML_SUCCESS) {
    return result;
  }
  unsigned room = pids ? *count : 0;
  unsigned found = 0;
  slots_sweep(&nvml_sim.node, device->gpu, SIM_ANY, 0);
  uint32_t last = atomic_load(&nvml_sim.node.state->slots_used);
  for (uint32_t slot = 1; slot <= last; slot++) {
    unsigned pid = has_context(slot, device->gpu) ? slots_pid(&nvml_sim.node, slot) : 0;
    if (pid != 0 && found++ < room) {
      pids[found - 1] = pid;
    }
  }
  *count = found;
  return found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid,
                                          nvmlAccountingStats_t *stats) {
  nvmlReturn_t result = nvml_ready_unless_mig(device, stats);
  if (result != NVML_SUCCESS) {
    return result;
  }
  struct sim_state *state = nvml_sim.node.state;
  uint32_t last = atomic_load(&state->slots_used);
  for (uint32_t slot = 1; slot <= last; slot++) {
    if (!has_context(slot, device->gpu) || slots_pid(&nvml_sim.node, slot) != pid) {
      continue;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t began = atomic_load(&state->pace[slot][device->gpu].began_ns);
    uint64_t age = (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec - began;
    uint64_t used = schedule_total(&nvml_sim.node, slot, device->gpu) -
                    atomic_load(&state->pace[slot][device->gpu].began_total);
    *stats = (nvmlAccountingStats_t){
        .gpuUtilization = began && age ? (unsigned)(used * 100 / age) : 0,
        .maxMemoryUsage = atomic_load(&state->slot[slot].holding[device->gpu].peak[SIM_PHYSICAL]),
        .startTime = began / 1000,
        .isRunning = 1};
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}
