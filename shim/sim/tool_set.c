/* SPDX-License-Identifier: Apache-2.0
 *
 * How the GPUs share their time and how NVML tells of it; seen at once by all.
 */
#include <stdio.h>
#include <string.h>

#include "mig.h"
#include "tool.h"

#define LEAST_SLICE_US 10U

/* Of the GPU, and of what MIG may make of it. */
static void set_slice(struct sim_state *state, unsigned gpu, uint64_t ns) {
  atomic_store(&state->schedule[gpu].slice_ns, ns);
  for (unsigned slice = 0; slice < SIM_SLICES; slice++) {
    uint32_t part = mig_part(gpu, (struct mig_compute){.slice = slice});
    atomic_store(&state->schedule[mig_lane(part)].slice_ns, ns);
  }
}

int tool_set(const struct tool_options *options) {
  struct node node;
  if (!options->has_slice && !options->nvml && !options->has_lag && !options->has_step) {
    fprintf(stderr, "aliquot-sim: set needs --time-slice-us, --nvml, --nvml-lag-ms or --nvml-step\n");
    return 2;
  }
  if (options->has_slice && options->slice_us != 0 && options->slice_us < LEAST_SLICE_US) {
    fprintf(stderr, "aliquot-sim: --time-slice-us: give fifo, or %u to 1000000\n", LEAST_SLICE_US);
    return 2;
  }
  if (!tool_open(options, &node)) {
    return 1;
  }
  int only = options->gpu_name ? tool_gpu(&node, options->gpu_name) : 0;
  if (only < 0) {
    return 1;
  }
  for (unsigned gpu = 0; gpu < node.state->gpus && options->has_slice; gpu++) {
    if (!options->gpu_name || gpu == (unsigned)only) {
      set_slice(node.state, gpu, options->slice_us * 1000);
    }
  }
  if (options->nvml) {
    atomic_store(&node.state->nvml_exact, strcmp(options->nvml, "exact") == 0);
  }
  if (options->has_lag) {
    atomic_store(&node.state->nvml_lag_ms, options->lag_ms);
  }
  if (options->has_step) {
    atomic_store(&node.state->nvml_step, options->step);
  }
  return 0;
}
