/* SPDX-License-Identifier: Apache-2.0
 *
 * What nvidia-smi sets on a GPU: its compute mode, by NVML, and the time slice of its processes, for which
 * NVML has no call: that is written into the simulated node.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <nvml.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node.h"
#include "schedule.h"
#include "smi.h"

/* Lengths by nvidia-smi's numbers. NVIDIA does not tell how long they are: ours are made up. */
static const struct {
  const char *name;
  uint64_t ns;
} slices[] = {{"Default", SCHEDULE_SLICE_NS}, {"Short", 1000000}, {"Medium", 4000000}, {"Long", 8000000}};
#define SLICES (sizeof slices / sizeof *slices)

static const char *const modes[] = {"DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"};
#define MODES (sizeof modes / sizeof *modes)

static bool is_gpu(const struct smi_set *set, unsigned index, nvmlDevice_t device) {
  char uuid[96] = "";
  char number[16];
  snprintf(number, sizeof number, "%u", index);
  nvmlDeviceGetUUID(device, uuid, sizeof uuid);
  return !set->gpu || strcmp(set->gpu, number) == 0 || strcasecmp(set->gpu, uuid) == 0;
}

static int set_mode(const struct smi_set *set, nvmlDevice_t device) {
  char *end;
  unsigned long mode = strtoul(set->mode, &end, 10);
  for (unsigned long i = 0; *end && i < MODES; i++) {
    if (strcmp(set->mode, modes[i]) == 0) {
      mode = i;
      end = "";
    }
  }
  if (*end || mode >= MODES) {
    fprintf(stderr, "aliquot-smi: -c %s: want DEFAULT, PROHIBITED or EXCLUSIVE_PROCESS\n", set->mode);
    return 2;
  }
  nvmlReturn_t error = nvmlDeviceSetComputeMode(device, (nvmlComputeMode_t)mode);
  return error == NVML_SUCCESS ? 0 : smi_failed("cannot set the compute mode", error);
}

static struct sim_schedule *schedule_of_uuid(const struct node *node, nvmlDevice_t device) {
  char uuid[96] = "";
  nvmlDeviceGetUUID(device, uuid, sizeof uuid);
  for (unsigned gpu = 0; gpu < node->state->gpus; gpu++) {
    char text[SIM_UUID_TEXT];
    node_uuid_text(&node->state->gpu[gpu], text);
    if (strcasecmp(text, uuid) == 0) {
      return &node->state->schedule[gpu];
    }
  }
  return NULL;
}

static int set_slice(const struct smi_set *set, const struct node *node, nvmlDevice_t device) {
  char *end;
  unsigned long length = strtoul(set->slice, &end, 10);
  struct sim_schedule *schedule = schedule_of_uuid(node, device);
  if (*end || end == set->slice || length >= SLICES) {
    fprintf(stderr, "aliquot-smi: --set-timeslice %s: want 0 (default), 1 (short), 2 (medium) or 3 (long)\n",
            set->slice);
    return 2;
  }
  if (geteuid() != 0) {
    return smi_failed("cannot set the time slice", NVML_ERROR_NO_PERMISSION);
  }
  if (!schedule) {
    return smi_failed("cannot set the time slice", NVML_ERROR_NOT_FOUND);
  }
  atomic_store(&schedule->slice_ns, slices[length].ns);
  return 0;
}

static void show_slice(const struct node *node, unsigned index, nvmlDevice_t device) {
  const struct sim_schedule *schedule = schedule_of_uuid(node, device);
  uint64_t ns = schedule ? atomic_load(&schedule->slice_ns) : 0;
  for (unsigned i = 0; i < SLICES; i++) {
    if (slices[i].ns == ns) {
      printf("GPU %u: Time-slice: %s\n", index, slices[i].name);
      return;
    }
  }
  printf("GPU %u: Time-slice: %llu us\n", index, (unsigned long long)ns / 1000);
}

bool smi_take_set(struct smi_set *set, int argc, char **argv, int *at) {
  static const struct {
    const char *word;
    size_t offset;
  } options[] = {{"-i", offsetof(struct smi_set, gpu)},
                 {"-c", offsetof(struct smi_set, mode)},
                 {"--set-timeslice", offsetof(struct smi_set, slice)}};
  if (strcmp(argv[*at], "compute-policy") == 0) {
    return set->policy = true;
  }
  if (set->policy && (strcmp(argv[*at], "-l") == 0 || strcmp(argv[*at], "--list") == 0)) {
    return set->list = true;
  }
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    if (strcmp(argv[*at], options[i].word) == 0 && *at + 1 < argc) {
      *(const char **)((char *)set + options[i].offset) = argv[++*at];
      return true;
    }
  }
  return false;
}

int smi_set(const struct smi_set *set, unsigned count) {
  struct node node = {0};
  bool any = false;
  if (set->policy && node_open(&node, node_root()) != NODE_OK) {
    fprintf(stderr, "aliquot-smi: compute-policy needs a simulated GPU; here, use the driver's nvidia-smi\n");
    return 1;
  }
  for (unsigned i = 0; i < count; i++) {
    nvmlDevice_t device;
    if (nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_SUCCESS || !is_gpu(set, i, device)) {
      continue;
    }
    any = true;
    if (set->list) {
      show_slice(&node, i, device);
    }
    int status = set->mode ? set_mode(set, device) : 0;
    status = status == 0 && set->slice ? set_slice(set, &node, device) : status;
    if (status != 0) {
      return status;
    }
  }
  if (!any) {
    fprintf(stderr, "aliquot-smi: -i %s: no such GPU\n", set->gpu ? set->gpu : "");
  }
  return any ? 0 : 6;
}
