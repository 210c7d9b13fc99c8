/* SPDX-License-Identifier: Apache-2.0
 *
 * aliquot-sim: makes a simulated node and shows its books.
 */
#ifndef SIM_TOOL_H
#define SIM_TOOL_H

#include "node.h"

struct tool_options {
  const char *root;
  const char *node;
  const char *lib_dir;
  const char *kind;
  unsigned gpus;
  uint32_t profile[SIM_GPUS];
  uint64_t context_bytes; /* 0 = as the profile says */
  bool json;
  uint32_t driver;    /* index into sim_drivers */
  const char *fabric; /* name of the NVLink domain, or NULL */
  uint32_t clique;
  uint64_t slice_us; /* set: 0 = a kernel at a time */
  bool has_slice;
  uint32_t lag_ms;
  bool has_lag;
  uint32_t step;
  bool has_step;
  const char *nvml;     /* set: "exact" or "real" */
  const char *what;     /* inject: the fault; mig: what to do */
  const char *gpu_name; /* inject, mig, set: an index or a UUID */
  uint32_t code;
  uint64_t count;
  uint64_t us;
  uint64_t memory;
  bool off;
  const char *partition; /* mig create: profile and place */
  const char *compute;   /* mig create: sizes of compute instances */
  uint32_t instance;     /* mig destroy */
  bool has_instance;
};

/* Each prints what went wrong to stderr and returns an exit status. */
int tool_init(const struct tool_options *options);
int tool_cdi(const struct tool_options *options);
int tool_books(const struct tool_options *options);
int tool_reset(const struct tool_options *options);
int tool_set(const struct tool_options *options);
int tool_inject(const struct tool_options *options);
int tool_mig(const struct tool_options *options);

/* MIG mode and instances of a GPU, as members of a JSON object. */
void tool_print_mig(const struct node *node, uint32_t gpu);

/* The MIG device with this UUID, as a part (mig.h); 0: none. */
uint32_t tool_part(const struct node *node, const char *name);

/* The GPU of an index, of the beginning of one UUID, or of a MIG device; -1, with a message, if there is
 * none. */
int tool_gpu(const struct node *node, const char *name);

/* Map the state, or say why not. */
bool tool_open(const struct tool_options *options, struct node *node);

#endif
