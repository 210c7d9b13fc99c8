/* SPDX-License-Identifier: Apache-2.0
 *
 * Showing the books, and letting peaks start anew.
 */
#include <stdio.h>

#include "groups.h"
#include "meter.h"
#include "mig.h"
#include "profiles.h"
#include "schedule.h"
#include "slots.h"
#include "tool.h"

/* Names come from environments and program names: keep them from breaking the output. */
static void print_text(const char *text) {
  putchar('"');
  for (; *text; text++) {
    unsigned char letter = (unsigned char)*text;
    if (letter < 0x20 || letter == '"' || letter == '\\') {
      printf("\\u%04x", letter);
    } else {
      putchar(letter);
    }
  }
  putchar('"');
}

static void print_gpus(const struct node *node) {
  for (unsigned i = 0; i < node->state->gpus; i++) {
    struct sim_gpu *gpu = &node->state->gpu[i];
    const struct sim_profile *profile = &sim_profiles[gpu->profile];
    struct meter_value value = meter_read(&gpu->used);
    char uuid[SIM_UUID_TEXT];
    node_uuid_text(gpu, uuid);
    printf("%s\n    {\"index\": %u, \"uuid\": \"%s\", \"name\": \"Simulated %s\", \"profile\": \"%s\", "
           "\"total\": %llu, \"reserved\": %llu, \"context\": %llu, \"used\": %llu, \"peak\": %llu",
           i ? "," : "", i, uuid, profile->product, profile->name,
           (unsigned long long)profile->total_mib << 20, (unsigned long long)profile->reserved_mib << 20,
           (unsigned long long)gpu->context_bytes, (unsigned long long)mig_used(node->state, i),
           (unsigned long long)value.peak);
    printf(", \"lost\": %s, \"throttled\": %s, \"ecc\": %llu, \"xid\": %u, "
           "\"oom\": %s, \"slow_us\": %u, \"busy_ns\": %llu, ",
           atomic_load(&gpu->faults.lost) ? "true" : "false",
           atomic_load(&gpu->faults.throttled) ? "true" : "false",
           (unsigned long long)atomic_load(&gpu->faults.ecc), atomic_load(&gpu->faults.last_xid),
           atomic_load(&gpu->faults.oom) ? "true" : "false", atomic_load(&gpu->faults.slow_us),
           (unsigned long long)atomic_load(&node->state->schedule[i].busy_ever));
    tool_print_mig(node, i);
    printf("}");
  }
}

static void print_groups(const struct node *node) {
  bool first = true;
  for (unsigned number = 1; number < SIM_GROUPS; number++) {
    struct sim_group *group = &node->state->group[number];
    for (unsigned i = 0; i < node->state->gpus && atomic_load(&group->key); i++) {
      struct meter_value physical = meter_read(&group->gpu[i].measure[SIM_PHYSICAL]);
      struct meter_value requested = meter_read(&group->gpu[i].measure[SIM_REQUESTED]);
      char uuid[SIM_UUID_TEXT];
      if (physical.peak == 0 && requested.peak == 0) {
        continue;
      }
      node_uuid_text(&node->state->gpu[i], uuid);
      printf("%s\n    {\"group\": ", first ? "" : ",");
      print_text(group->name);
      printf(", \"host\": ");
      print_text(group->host);
      printf(
          ", \"gpu\": \"%s\", \"used\": %llu, \"peak\": %llu, \"requested\": %llu, \"requested_peak\": %llu}",
          uuid, (unsigned long long)physical.used, (unsigned long long)physical.peak,
          (unsigned long long)requested.used, (unsigned long long)requested.peak);
      first = false;
    }
  }
}

/* GPU time that the process has received; of one that launched nothing: 0. */
static unsigned long long gpu_time(const struct node *node, uint32_t number, uint32_t gpu) {
  const struct sim_pace *pace = &node->state->pace[number][gpu];
  return atomic_load(&pace->began_ns) ? schedule_total(node, number, gpu) - atomic_load(&pace->began_total)
                                      : 0;
}

static void print_process(const struct node *node, uint32_t number, uint32_t i, bool alive) {
  const struct sim_slot *slot = &node->state->slot[number];
  const struct sim_holding *holding = &slot->holding[i];
  char uuid[SIM_UUID_TEXT];
  node_uuid_text(&node->state->gpu[i], uuid);
  printf("{\"pid\": %u, \"namespace_pid\": %llu, \"command\": ", alive ? slots_pid(node, number) : 0,
         (unsigned long long)slot->pid);
  print_text(slot->command);
  printf(", \"group\": ");
  print_text(node->state->group[atomic_load(&slot->group)].name);
  printf(", \"gpu\": \"%s\", \"alive\": %s, \"contexts\": %u, \"used\": %llu, \"peak\": %llu, "
         "\"requested\": %llu, \"requested_peak\": %llu, \"gpu_ns\": %llu}",
         uuid, alive ? "true" : "false", alive ? atomic_load(&holding->contexts) : 0,
         alive ? (unsigned long long)slots_held(node, number, i, SIM_PHYSICAL) : 0,
         (unsigned long long)atomic_load(&holding->peak[SIM_PHYSICAL]),
         alive ? (unsigned long long)slots_held(node, number, i, SIM_REQUESTED) : 0,
         (unsigned long long)atomic_load(&holding->peak[SIM_REQUESTED]),
         alive ? gpu_time(node, number, i) : 0);
}

/* Processes that use a GPU; of ended ones those whose slot nobody has taken since. */
static void print_processes(const struct node *node) {
  bool first = true;
  uint32_t last = atomic_load(&node->state->slots_used);
  for (uint32_t number = 1; number <= last; number++) {
    bool alive = atomic_load(&node->state->slot[number].life) & 1;
    if (atomic_load(&node->state->slot[number].kind) != SIM_PROCESS) {
      continue;
    }
    for (uint32_t gpu = 0; gpu < node->state->gpus; gpu++) {
      if (atomic_load(&node->state->slot[number].holding[gpu].peak[SIM_PHYSICAL]) > 0) {
        printf("%s\n    ", first ? "" : ",");
        print_process(node, number, gpu, alive);
        first = false;
      }
    }
  }
}

/* Exportable memory and pools: part of their makers' memory as long as those live and have not let go. */
static void print_shared(const struct node *node) {
  static const char *const kinds[] = {[SIM_SHARED_MEMORY] = "memory", [SIM_SHARED_POOL] = "pool"};
  bool first = true;
  uint32_t last = atomic_load(&node->state->slots_used);
  for (uint32_t number = 1; number <= last; number++) {
    const struct sim_slot *slot = &node->state->slot[number];
    uint32_t kind = atomic_load(&slot->kind);
    if (!(atomic_load(&slot->life) & 1) || kind == SIM_PROCESS) {
      continue;
    }
    const struct sim_shared *shared = &slot->shared;
    const struct sim_slot *owner = &node->state->slot[shared->owner];
    bool owned = shared->owner && atomic_load(&owner->life) == shared->owner_life;
    char uuid[SIM_UUID_TEXT];
    node_uuid_text(&node->state->gpu[shared->gpu], uuid);
    printf("%s\n    {\"kind\": \"%s\", \"group\": ", first ? "" : ",", kinds[kind]);
    print_text(node->state->group[atomic_load(&slot->group)].name);
    printf(", \"gpu\": \"%s\", \"pid\": %u, \"used\": %llu}", uuid,
           owned ? slots_pid(node, shared->owner) : 0,
           (unsigned long long)slots_held(node, number, shared->gpu, SIM_PHYSICAL));
    first = false;
  }
}

static void print_table(const struct node *node) {
  printf("%-42s %10s %10s %10s  MiB\n", "GPU", "total", "used", "peak");
  for (unsigned i = 0; i < node->state->gpus; i++) {
    struct meter_value value = meter_read(&node->state->gpu[i].used);
    char uuid[SIM_UUID_TEXT];
    node_uuid_text(&node->state->gpu[i], uuid);
    printf("%-42s %10u %10llu %10llu\n", uuid, sim_profiles[node->state->gpu[i].profile].total_mib,
           (unsigned long long)mig_used(node->state, i) >> 20, (unsigned long long)value.peak >> 20);
    for (unsigned number = 1; number < SIM_GROUPS; number++) {
      struct sim_group *group = &node->state->group[number];
      value = meter_read(&group->gpu[i].measure[SIM_PHYSICAL]);
      if (value.peak > 0) {
        printf("  %-40.40s %10s %10llu %10llu  %s\n", group->name, "", (unsigned long long)value.used >> 20,
               (unsigned long long)value.peak >> 20, group->host);
      }
    }
  }
}

int tool_books(const struct tool_options *options) {
  struct node node;
  if (!tool_open(options, &node)) {
    return 1;
  }
  slots_sweep(&node, SIM_ANY, SIM_ANY, 0);
  if (!options->json) {
    print_table(&node);
    return 0;
  }
  printf("{\n  \"node\": ");
  print_text(node.state->node);
  printf(",\n  \"gpus\": [");
  print_gpus(&node);
  printf("\n  ],\n  \"groups\": [");
  print_groups(&node);
  printf("\n  ],\n  \"processes\": [");
  print_processes(&node);
  printf("\n  ],\n  \"shared\": [");
  print_shared(&node);
  printf("\n  ]\n}\n");
  return 0;
}

int tool_reset(const struct tool_options *options) {
  struct node node;
  if (!tool_open(options, &node)) {
    return 1;
  }
  groups_forget_unused(&node);
  for (unsigned gpu = 0; gpu < node.state->gpus; gpu++) {
    meter_reset_peak(&node.state->gpu[gpu].used);
    for (unsigned start = 0; start < SIM_SLICES; start++) {
      meter_reset_peak(&node.state->instance[gpu][start].used);
    }
    for (unsigned group = 1; group < SIM_GROUPS; group++) {
      meter_reset_peak(&node.state->group[group].gpu[gpu].measure[SIM_PHYSICAL]);
      meter_reset_peak(&node.state->group[group].gpu[gpu].measure[SIM_REQUESTED]);
    }
  }
  return 0;
}
