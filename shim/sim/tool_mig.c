/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG by hand: mode, instances and what there is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "meter.h"
#include "mig.h"
#include "profiles.h"
#include "slots.h"
#include "tool.h"

static const struct mig_card *card_of(const struct node *node, uint32_t gpu) {
  return sim_profiles[node->state->gpu[gpu].profile].mig;
}

uint32_t tool_part(const struct node *node, const char *name) {
  for (uint32_t gpu = 0; name && gpu < node->state->gpus; gpu++) {
    struct mig_compute computes[SIM_SLICES];
    unsigned count = mig_computes(mig_word(node->state, gpu), computes);
    for (unsigned i = 0; i < count; i++) {
      char uuid[SIM_UUID_TEXT];
      mig_uuid_text(&node->state->gpu[gpu], computes[i], uuid);
      if (strcasecmp(uuid, name) == 0) {
        return mig_part(gpu, computes[i]);
      }
    }
  }
  return 0;
}

/* --- showing --- */

static void print_devices(const struct node *node, uint32_t gpu, struct mig_instance in) {
  struct mig_compute all[SIM_SLICES];
  unsigned count = mig_computes(mig_word(node->state, gpu), all);
  bool first = true;
  for (unsigned i = 0; i < count; i++) {
    char name[SIM_NAME];
    char uuid[SIM_UUID_TEXT];
    if (all[i].in.start != in.start) {
      continue;
    }
    mig_name(card_of(node, gpu), all[i], name);
    mig_uuid_text(&node->state->gpu[gpu], all[i], uuid);
    printf("%s{\"id\": %u, \"name\": \"%s\", \"uuid\": \"%s\", \"multiprocessors\": %u}", first ? "" : ", ",
           mig_compute_id(all[i]), name, uuid, mig_multiprocessors(card_of(node, gpu), all[i]));
    first = false;
  }
}

void tool_print_mig(const struct node *node, uint32_t gpu) {
  uint64_t word = mig_word(node->state, gpu);
  struct mig_instance all[SIM_SLICES];
  unsigned count = mig_instances(word, all);
  printf("\"mig\": %s, \"mig_pending\": %s, \"instances\": [", mig_is_on(word) ? "true" : "false",
         mig_will_be_on(word) ? "true" : "false");
  for (unsigned i = 0; i < count; i++) {
    struct meter_value value = meter_read(&node->state->instance[gpu][all[i].start].used);
    const struct mig_size *size = &card_of(node, gpu)->size[all[i].kind];
    printf("%s\n      {\"id\": %u, \"profile\": \"%s\", \"start\": %u, \"size\": %u, \"total\": %llu, "
           "\"used\": %llu, \"peak\": %llu, \"devices\": [",
           i ? "," : "", mig_instance_id(all[i]), size->name, all[i].start,
           mig_kinds[all[i].kind].memory_slices, (unsigned long long)size->memory_mib << 20,
           (unsigned long long)value.used, (unsigned long long)value.peak);
    print_devices(node, gpu, all[i]);
    printf("]}");
  }
  printf("]");
}

static void show_gpu(const struct node *node, uint32_t gpu) {
  uint64_t word = mig_word(node->state, gpu);
  struct mig_instance instances[SIM_SLICES];
  struct mig_compute computes[SIM_SLICES];
  unsigned count = mig_instances(word, instances);
  unsigned devices = mig_computes(word, computes);
  const char *mode = !card_of(node, gpu)                       ? "cannot be partitioned"
                     : mig_is_on(word) != mig_will_be_on(word) ? "MIG mode changes at the next reset"
                     : mig_is_on(word)                         ? "MIG mode on"
                                                               : "MIG mode off";
  char uuid[SIM_UUID_TEXT];
  node_uuid_text(&node->state->gpu[gpu], uuid);
  printf("GPU %u: %s: %s\n", gpu, uuid, mode);
  for (unsigned i = 0; i < count; i++) {
    const struct mig_kind *kind = &mig_kinds[instances[i].kind];
    printf("  GPU instance %2u  %-12s at %u:%u\n", mig_instance_id(instances[i]),
           card_of(node, gpu)->size[instances[i].kind].name, instances[i].start, kind->memory_slices);
    for (unsigned c = 0; c < devices; c++) {
      if (computes[c].in.start == instances[i].start) {
        char name[SIM_NAME];
        mig_name(card_of(node, gpu), computes[c], name);
        mig_uuid_text(&node->state->gpu[gpu], computes[c], uuid);
        printf("    compute instance %u  %-15s %s\n", mig_compute_id(computes[c]), name, uuid);
      }
    }
  }
}

static int list(const struct node *node, int only, const struct tool_options *options) {
  slots_sweep(node, SIM_ANY, SIM_ANY, 0);
  printf("%s", options->json ? "{\"gpus\": [" : "");
  for (uint32_t gpu = 0; gpu < node->state->gpus; gpu++) {
    if (only >= 0 && gpu != (uint32_t)only) {
      continue;
    }
    if (options->json) {
      char uuid[SIM_UUID_TEXT];
      node_uuid_text(&node->state->gpu[gpu], uuid);
      printf("%s\n    {\"index\": %u, \"uuid\": \"%s\", ", gpu && only < 0 ? "," : "", gpu, uuid);
      tool_print_mig(node, gpu);
      printf("}");
    } else {
      show_gpu(node, gpu);
    }
  }
  printf("%s", options->json ? "\n]}\n" : "");
  return 0;
}

static int profiles(const struct node *node, int gpu, const struct tool_options *options) {
  uint64_t word = mig_word(node->state, (uint32_t)gpu);
  (void)options;
  printf("%-12s %10s %5s %6s %5s\n", "profile", "MiB", "SMs", "slices", "free");
  for (unsigned kind = 0; kind < MIG_KINDS; kind++) {
    const struct mig_size *size = &card_of(node, (uint32_t)gpu)->size[kind];
    printf("%-12s %10u %5u %4u/%u %3u/%u\n", size->name, size->memory_mib, size->multiprocessors,
           mig_kinds[kind].slices, mig_kinds[kind].memory_slices, mig_remaining(word, kind),
           mig_kinds[kind].most);
  }
  return 0;
}

/* --- changing --- */

static int answered(enum mig_answer answer, const char *what) {
  static const char *const texts[] = {
      [MIG_OFF] = "the GPU is not in MIG mode: run `aliquot-sim mig on` first",
      [MIG_ABSENT] = "no such instance: see `aliquot-sim mig list`",
      [MIG_NO_ROOM] = "something is in its place: see `aliquot-sim mig profiles` for what is free",
      [MIG_IN_USE] = "in use: end its programs and destroy its instances first",
  };
  if (answer != MIG_DONE) {
    fprintf(stderr, "aliquot-sim: %s: %s\n", what, texts[answer]);
  }
  return answer == MIG_DONE ? 0 : 1;
}

static int turn_on(const struct node *node, int gpu, const struct tool_options *options) {
  (void)options;
  return answered(mig_set_mode(node, (uint32_t)gpu, true), "mig on (from the next reset)");
}
static int turn_off(const struct node *node, int gpu, const struct tool_options *options) {
  (void)options;
  return answered(mig_set_mode(node, (uint32_t)gpu, false), "mig off (from the next reset)");
}

/* "3g.20gb" or "3g.20gb:4". False: no such profile. */
static bool take_profile(const struct mig_card *card, const char *text, unsigned *kind, uint32_t *start) {
  size_t length = text ? strcspn(text, ":") : 0;
  for (*kind = 0; *kind < MIG_KINDS; ++*kind) {
    const char *name = card->size[*kind].name;
    if (length > 0 && strlen(name) == length && strncmp(name, text, length) == 0) {
      char *end = NULL;
      *start = text[length] ? (uint32_t)strtoul(text + length + 1, &end, 10) : MIG_ANYWHERE;
      return !end || (*end == '\0' && end > text + length + 1);
    }
  }
  return false;
}

/* Compute instances: "1,1,2" slices each, "none", or by default one that is the whole. */
static int create_computes(const struct node *node, uint32_t gpu, struct mig_instance in, const char *sizes) {
  struct mig_compute made;
  unsigned whole = mig_kinds[in.kind].slices;
  if (sizes && strcmp(sizes, "none") == 0) {
    return 0;
  }
  if (!sizes) {
    return answered(mig_create_compute(node->state, gpu, in, whole, MIG_ANYWHERE, &made), "mig create");
  }
  for (const char *at = sizes; *at;) {
    char *end;
    unsigned long size = strtoul(at, &end, 10);
    if (end == at || (*end && *end != ',') || size == 0 || size > whole ||
        mig_possible_slices(in.kind, (unsigned)size) == 0) {
      fprintf(stderr, "aliquot-sim: --compute %s: give sizes in slices, such as 1,2, or none\n", sizes);
      return 2;
    }
    enum mig_answer answer = mig_create_compute(node->state, gpu, in, (unsigned)size, MIG_ANYWHERE, &made);
    if (answer != MIG_DONE) {
      return answered(answer, "mig create --compute");
    }
    at = end + (*end == ',');
  }
  return 0;
}

static int destroy_instance(const struct node *node, uint32_t gpu, struct mig_instance in) {
  struct mig_compute all[SIM_SLICES];
  unsigned count = mig_computes(mig_word(node->state, gpu), all);
  for (unsigned i = 0; i < count; i++) {
    if (all[i].in.start == in.start) {
      int status = answered(mig_destroy_compute(node, gpu, all[i].slice), "mig destroy");
      if (status != 0) {
        return status;
      }
    }
  }
  return answered(mig_destroy(node, gpu, in.start), "mig destroy");
}

static int create(const struct node *node, int gpu, const struct tool_options *options) {
  const struct mig_card *card = card_of(node, (uint32_t)gpu);
  struct mig_instance made;
  unsigned kind;
  uint32_t start;
  if (!take_profile(card, options->partition, &kind, &start)) {
    fprintf(stderr, "aliquot-sim: mig create needs --profile NAME[:START]; there are");
    for (kind = 0; kind < MIG_KINDS; kind++) {
      fprintf(stderr, " %s", card->size[kind].name);
    }
    fprintf(stderr, "\n");
    return 2;
  }
  int status = answered(mig_create(node->state, (uint32_t)gpu, kind, start, &made), "mig create");
  if (status != 0) {
    return status;
  }
  status = create_computes(node, (uint32_t)gpu, made, options->compute);
  if (status != 0) {
    destroy_instance(node, (uint32_t)gpu, made);
    return status;
  }
  printf("GPU instance %u\n", mig_instance_id(made));
  return 0;
}

/* One, or all of the GPU. */
static int destroy(const struct node *node, int gpu, const struct tool_options *options) {
  struct mig_instance all[SIM_SLICES];
  unsigned count = mig_instances(mig_word(node->state, (uint32_t)gpu), all);
  bool found = !options->has_instance;
  for (unsigned i = 0; i < count; i++) {
    if (options->has_instance && mig_instance_id(all[i]) != options->instance) {
      continue;
    }
    found = true;
    int status = destroy_instance(node, (uint32_t)gpu, all[i]);
    if (status != 0) {
      return status;
    }
  }
  return found ? 0 : answered(MIG_ABSENT, "mig destroy --instance");
}

int tool_mig(const struct tool_options *options) {
  static const struct {
    const char *name;
    int (*run)(const struct node *node, int gpu, const struct tool_options *options);
    bool any; /* no GPU needs to be named */
  } commands[] = {{"on", turn_on, false},      {"off", turn_off, false}, {"create", create, false},
                  {"destroy", destroy, false}, {"list", list, true},     {"profiles", profiles, false}};
  struct node node;
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
    if (!options->what || strcmp(options->what, commands[i].name) != 0) {
      continue;
    }
    if (!tool_open(options, &node)) {
      return 1;
    }
    bool all = commands[i].any && !options->gpu_name;
    int gpu = all ? -1 : tool_gpu(&node, options->gpu_name);
    if (gpu < 0 && !all) {
      return 1;
    }
    if (!commands[i].any && !card_of(&node, (uint32_t)gpu)) {
      fprintf(stderr,
              "aliquot-sim: mig: GPU %d cannot be partitioned: a100-40gb, a100-80gb, h100 and h200 "
              "can\n",
              gpu);
      return 1;
    }
    return commands[i].run(&node, gpu, options);
  }
  fprintf(stderr, "aliquot-sim: mig %s: there are on, off, create, destroy, list, profiles\n",
          options->what ? options->what : "");
  return 2;
}
