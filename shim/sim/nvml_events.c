/* SPDX-License-Identifier: Apache-2.0
 *
 * Event sets: which of the node's events a program waits for.
 */
#include <stdlib.h>
#include <string.h>

#include "events.h"
#include "nvml_sim.h"

#define SUPPORTED                                                                                            \
  (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState |                   \
   nvmlEventTypeXidCriticalError | nvmlEventTypeClock | nvmlEventMigConfigChange)

struct nvmlEventSet_st {
  uint32_t next; /* number of the event to look at */
  struct {
    unsigned long long types;
    uint32_t since;
  } device[SIM_GPUS];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!set) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  nvmlEventSet_t made = calloc(1, sizeof *made);
  if (!made) {
    return NVML_ERROR_MEMORY;
  }
  made->next = events_next(nvml_sim.node.state);
  *set = made;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  nvmlReturn_t result = nvml_ready();
  if (result == NVML_SUCCESS) {
    free(set);
  }
  return result;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes) {
  nvmlReturn_t result = nvml_ready_for(device, eventTypes);
  if (result == NVML_SUCCESS) {
    *eventTypes = SUPPORTED;
  }
  return result;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes,
                                      nvmlEventSet_t set) {
  nvmlReturn_t result = nvml_ready_for(device, set);
  if (result != NVML_SUCCESS) {
    return result;
  }
  if ((eventTypes & ~(unsigned long long)nvmlEventTypeAll) != 0) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  if ((eventTypes & ~(unsigned long long)SUPPORTED) != 0) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  /* nvml.h: what happened before this call is not recorded. */
  if (set->device[device->gpu].types == 0) {
    set->device[device->gpu].since = events_next(nvml_sim.node.state);
  }
  set->device[device->gpu].types |= eventTypes;
  return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data) {
  struct event event;
  uint32_t number = set->next;
  while (events_read(nvml_sim.node.state, &set->next, &event)) {
    unsigned long long type = 1ULL << event.type;
    bool wanted = (set->device[event.gpu].types & type) &&
                  (int32_t)(set->next - 1 - set->device[event.gpu].since) >= 0 && nvml_handle(event.gpu);
    number = set->next;
    if (wanted) {
      *data = (nvmlEventData_t){.device = nvml_handle(event.gpu),
                                .eventType = type,
                                .eventData = event.data,
                                .gpuInstanceId = NO_INSTANCE,
                                .computeInstanceId = NO_INSTANCE};
      return true;
    }
  }
  set->next = number;
  return false;
}

static bool any_lost(const struct nvmlEventSet_st *set) {
  const struct sim_state *state = nvml_sim.node.state;
  for (uint32_t gpu = 0; gpu < state->gpus; gpu++) {
    if (set->device[gpu].types != 0 && atomic_load(&state->gpu[gpu].faults.lost)) {
      return true;
    }
  }
  return false;
}

/* What happened before the GPU was lost is delivered first. */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms) {
  nvmlReturn_t result = nvml_ready();
  if (result != NVML_SUCCESS) {
    return result;
  }
  if (!set || !data) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  uint64_t until = nvml_milliseconds() + timeoutms;
  for (;;) {
    if (next_event(set, data)) {
      return NVML_SUCCESS;
    }
    if (any_lost(set)) {
      return NVML_ERROR_GPU_IS_LOST;
    }
    uint64_t now = nvml_milliseconds();
    if (now >= until) {
      return NVML_ERROR_TIMEOUT;
    }
    events_wait(nvml_sim.node.state, set->next, (unsigned)(until - now));
  }
}

/* The first ABI ends before gpuInstanceId. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms) {
  nvmlEventData_t full;
  nvmlReturn_t result = nvmlEventSetWait_v2(set, data ? &full : NULL, timeoutms);
  if (result == NVML_SUCCESS) {
    memcpy(data, &full, offsetof(nvmlEventData_t, gpuInstanceId));
  }
  return result;
}
