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
  const char *what;     /* inject: the fault */
  const char *gpu_name; /* inject: an index or a UUID */
  uint32_t code;
  uint64_t count;
  uint64_t memory;
  bool off;
};

/* Each prints what went wrong to stderr and returns an exit status. */
int tool_init(const struct tool_options *options);
int tool_cdi(const struct tool_options *options);
int tool_books(const struct tool_options *options);
int tool_reset(const struct tool_options *options);
int tool_inject(const struct tool_options *options);

/* Map the state, or say why not. */
bool tool_open(const struct tool_options *options, struct node *node);

#endif
