/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as streams, captures and graphs see them.
 */
#ifndef SIM_LAUNCH_H
#define SIM_LAUNCH_H

#include "module.h"

struct launch {
  CUfunction handle; /* as given: a function or a kernel */
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void **parameters;
  void **extra;
  bool cooperative;
};

/* Check a launch in a context, bring its code onto the GPU, and find what it takes. */
CUresult launch_check(const struct launch *launch, CUcontext context, struct engine_cost *cost);

#endif
