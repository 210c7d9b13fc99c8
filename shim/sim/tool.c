/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiles.h"

static const char usage[] =
    "usage: aliquot-sim COMMAND [options]\n"
    "  init --gpu PROFILE[:COUNT] ... [--node NAME] [--context-mib N] [--driver 535|570|580|595]\n"
    "       [--fabric DOMAIN[:CLIQUE]]       make a node (kept if it is there); NVLinks to other nodes\n"
    "  set [--gpu G] --time-slice-us N|fifo  how long a process has the GPU while others wait; fifo: a "
    "kernel\n"
    "  set --nvml exact|real [--nvml-lag-ms N] [--nvml-step PERCENT]   how NVML tells utilisation\n"
    "  cdi --lib-dir DIR [--kind KIND]      print the CDI specification of its GPUs; DIR holds the "
    "libraries\n"
    "  books [--json]                       print what every GPU, group and process holds and held at most\n"
    "  reset                                let all peaks start anew, forget ended groups\n"
    "  inject xid --gpu G --code N          an XID of the GPU with this index or UUID\n"
    "  inject ecc --gpu G [--count N]       uncorrected memory errors\n"
    "  inject throttle --gpu G [--off]      too hot: clocks are low\n"
    "  inject lost --gpu G                  fallen off the bus\n"
    "  inject oom --gpu G [--count N|--off] the next N requests for memory (default: all) are refused\n"
    "  inject slow --gpu G --us N|--off     each call of the driver takes so much longer\n"
    "  inject recover --gpu G               all of that is over\n"
    "  inject hold --gpu G --memory SIZE    be a process that holds SIZE bytes (16Gi, 512Mi) until it is "
    "killed\n"
    "  mig on|off --gpu G                   MIG mode; of a GPU in use from its next reset (inject recover)\n"
    "  mig create --gpu G --profile NAME[:START] [--compute N,...|none]   a GPU instance, and compute "
    "instances in it\n"
    "  mig destroy --gpu G [--instance ID]  that one, or all\n"
    "  mig list [--gpu G] [--json]          what there is\n"
    "  mig profiles --gpu G                 what there can be, and how often it still fits\n"
    "All take --root DIR (default: $ALIQUOT_SIM_ROOT, else /run/aliquot-sim).\n";

bool tool_open(const struct tool_options *options, struct node *node) {
  switch (node_open(node, options->root)) {
  case NODE_OK:
    return true;
  case NODE_ABSENT:
    fprintf(stderr, "aliquot-sim: no simulated node in %s: run `aliquot-sim init --gpu PROFILE`\n",
            options->root);
    return false;
  case NODE_OTHER_LAYOUT:
    fprintf(stderr, "aliquot-sim: %s/state is of another version: remove it and run `aliquot-sim init`\n",
            options->root);
    return false;
  default:
    fprintf(stderr, "aliquot-sim: no memory to map %s/state\n", options->root);
    return false;
  }
}

static bool add_gpus(struct tool_options *options, const char *text) {
  size_t length = strcspn(text, ":");
  unsigned long count = text[length] == ':' ? strtoul(text + length + 1, NULL, 10) : 1;
  for (uint32_t profile = 0; profile < sim_profile_count; profile++) {
    if (strlen(sim_profiles[profile].name) != length ||
        strncmp(sim_profiles[profile].name, text, length) != 0) {
      continue;
    }
    if (count == 0 || count > SIM_GPUS - options->gpus) {
      fprintf(stderr, "aliquot-sim: --gpu %s: a node has 1 to %u GPUs\n", text, SIM_GPUS);
      return false;
    }
    while (count-- > 0) {
      options->profile[options->gpus++] = profile;
    }
    return true;
  }
  fprintf(stderr, "aliquot-sim: --gpu %s: no such profile; there are", text);
  for (uint32_t profile = 0; profile < sim_profile_count; profile++) {
    fprintf(stderr, " %s", sim_profiles[profile].name);
  }
  fprintf(stderr, "\n");
  return false;
}

/* The whole of a text as a number up to `largest`. */
static bool take_number(const char *name, const char *text, uint64_t largest, uint64_t *number) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end || errno != 0 || value > largest) {
    fprintf(stderr, "aliquot-sim: %s %s: give a number from 0 to %llu\n", name, text,
            (unsigned long long)largest);
    return false;
  }
  *number = value;
  return true;
}

/* Bytes, or with Ki, Mi, Gi. */
static bool take_size(const char *name, const char *text, uint64_t *bytes) {
  static const struct {
    const char *suffix;
    unsigned shift;
  } units[] = {{"", 0}, {"Ki", 10}, {"Mi", 20}, {"Gi", 30}};
  char *end;
  unsigned long long value = strtoull(text, &end, 10);
  for (size_t i = 0; i < sizeof units / sizeof *units && *text >= '0' && *text <= '9'; i++) {
    if (strcmp(end, units[i].suffix) == 0 && value < 1ULL << 42 >> units[i].shift) {
      *bytes = value << units[i].shift;
      return true;
    }
  }
  fprintf(stderr, "aliquot-sim: %s %s: give bytes, or a number with Ki, Mi or Gi, below 4096Gi\n", name,
          text);
  return false;
}

static bool take_driver(struct tool_options *options, const char *value) {
  for (unsigned i = 0; i < sim_driver_count; i++) {
    char branch[16];
    snprintf(branch, sizeof branch, "%u", sim_drivers[i].branch);
    if (strcmp(branch, value) == 0) {
      options->driver = i;
      return true;
    }
  }
  fprintf(stderr, "aliquot-sim: --driver %s: there are 535, 570, 580 and 595\n", value);
  return false;
}

static bool take_fabric(struct tool_options *options, const char *value) {
  static char name[SIM_NAME];
  uint64_t clique = 1;
  size_t length = strcspn(value, ":");
  if (length == 0 || length >= sizeof name) {
    fprintf(stderr, "aliquot-sim: --fabric %s: give a name of 1 to %u characters\n", value, SIM_NAME - 1);
    return false;
  }
  if (value[length] == ':' && !take_number("--fabric", value + length + 1, 65535, &clique)) {
    return false;
  }
  memcpy(name, value, length);
  options->fabric = name;
  options->clique = (uint32_t)clique;
  return true;
}

static bool take_setting(struct tool_options *options, const char *name, const char *value, bool *known) {
  uint64_t number = 0;
  *known = true;
  if (strcmp(name, "--time-slice-us") == 0) {
    options->has_slice = strcmp(value, "fifo") == 0 || take_number(name, value, 1000000, &options->slice_us);
    return options->has_slice;
  }
  if (strcmp(name, "--nvml-lag-ms") == 0) {
    options->has_lag = take_number(name, value, 1000, &number);
    options->lag_ms = (uint32_t)number;
    return options->has_lag;
  }
  if (strcmp(name, "--nvml-step") == 0) {
    options->has_step = take_number(name, value, 50, &number);
    options->step = (uint32_t)number;
    return options->has_step;
  }
  if (strcmp(name, "--nvml") == 0) {
    options->nvml = value;
    bool valid = strcmp(value, "exact") == 0 || strcmp(value, "real") == 0;
    return valid || (fprintf(stderr, "aliquot-sim: --nvml %s: give exact or real\n", value), false);
  }
  *known = false;
  return false;
}

static bool take_fault_option(struct tool_options *options, const char *name, const char *value) {
  uint64_t code = 0;
  bool known;
  bool taken = take_setting(options, name, value, &known);
  if (known) {
    return taken;
  }
  if (strcmp(name, "--code") == 0 && take_number(name, value, UINT32_MAX, &code)) {
    options->code = (uint32_t)code;
    return true;
  }
  if (strcmp(name, "--count") == 0) {
    return take_number(name, value, 1000000, &options->count);
  }
  if (strcmp(name, "--us") == 0) {
    return take_number(name, value, 10000000, &options->us);
  }
  if (strcmp(name, "--memory") == 0) {
    return take_size(name, value, &options->memory);
  }
  if (strcmp(name, "--instance") == 0 && take_number(name, value, 13, &code)) {
    options->instance = (uint32_t)code;
    return options->has_instance = true;
  }
  if (strcmp(name, "--profile") == 0 || strcmp(name, "--compute") == 0) {
    *(name[2] == 'p' ? &options->partition : &options->compute) = value;
    return true;
  }
  if (strcmp(name, "--code") != 0 && strcmp(name, "--instance") != 0) {
    fprintf(stderr, "aliquot-sim: unknown option %s\n%s", name, usage);
  }
  return false;
}

static bool take_option(struct tool_options *options, const char *name, const char *value) {
  if (strcmp(name, "--root") == 0) {
    options->root = value;
  } else if (strcmp(name, "--node") == 0) {
    options->node = value;
  } else if (strcmp(name, "--lib-dir") == 0) {
    options->lib_dir = value;
  } else if (strcmp(name, "--kind") == 0) {
    options->kind = value;
  } else if (strcmp(name, "--context-mib") == 0) {
    char *end;
    unsigned long mib = strtoul(value, &end, 10);
    if (*end || mib == 0 || mib % 2 || mib > 65536) {
      fprintf(stderr, "aliquot-sim: --context-mib %s: give an even number of MiB (pages have 2 MiB)\n",
              value);
      return false;
    }
    options->context_bytes = (uint64_t)mib << 20;
  } else if (strcmp(name, "--driver") == 0) {
    return take_driver(options, value);
  } else if (strcmp(name, "--fabric") == 0) {
    return take_fabric(options, value);
  } else if (strcmp(name, "--gpu") == 0 && options->what) {
    options->gpu_name = value;
  } else if (strcmp(name, "--gpu") == 0) {
    return add_gpus(options, value);
  } else {
    return take_fault_option(options, name, value);
  }
  return true;
}

static bool parse(struct tool_options *options, int count, char **arguments) {
  for (int i = 0; i < count; i++) {
    if (strcmp(arguments[i], "--json") == 0) {
      options->json = true;
      continue;
    }
    if (strcmp(arguments[i], "--off") == 0) {
      options->off = true;
      continue;
    }
    if (i + 1 == count) {
      fprintf(stderr, "aliquot-sim: %s: a value is missing, or there is no such option\n%s", arguments[i],
              usage);
      return false;
    }
    if (!take_option(options, arguments[i], arguments[i + 1])) {
      return false;
    }
    i++;
  }
  return true;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    int (*run)(const struct tool_options *options);
  } commands[] = {{"init", tool_init}, {"cdi", tool_cdi},       {"books", tool_books}, {"reset", tool_reset},
                  {"set", tool_set},   {"inject", tool_inject}, {"mig", tool_mig}};
  char host[SIM_NAME] = "node";
  gethostname(host, sizeof host - 1);
  struct tool_options options = {.root = node_root(), .node = host, .kind = "sim.aliquot.dev/gpu"};
  for (options.driver = 0; sim_drivers[options.driver].branch != SIM_DRIVER_DEFAULT; options.driver++) {
  }
  if (argc < 2 || strcmp(argv[1], "--help") == 0) {
    fputs(usage, argc < 2 ? stderr : stdout);
    return argc < 2 ? 2 : 0;
  }
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
    if (strcmp(argv[1], commands[i].name) == 0) {
      bool worded = commands[i].run == tool_inject || commands[i].run == tool_mig;
      int taken = worded && argc > 2 ? 3 : 2;
      options.what = taken == 3 ? argv[2] : commands[i].run == tool_set ? "" : NULL;
      return parse(&options, argc - taken, argv + taken) ? commands[i].run(&options) : 2;
    }
  }
  fprintf(stderr, "aliquot-sim: no command %s\n%s", argv[1], usage);
  return 2;
}
