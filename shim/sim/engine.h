/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as this process drives it: where on the process's own clock of GPU time
 * (schedule.h) its kernels run. A kernel gets its place when it is submitted:
 * as early as its stream allows and enough of the GPU's SMs are free, in the
 * order of submission. All of it wants the driver's lock held.
 */
#ifndef SIM_ENGINE_H
#define SIM_ENGINE_H

#include "driver.h"
#include "schedule.h"

#define ENGINE_LANES 16U /* parts of a GPU that kernels can have beside one another */

struct engine {
  struct schedule_view view;
  uint64_t free_at[ENGINE_LANES];
  uint64_t end; /* of all that was submitted */
  bool joined;
  unsigned percent; /* of the SMs */
};

/* What one kernel takes. */
struct engine_cost {
  uint64_t ns;
  unsigned lanes; /* 1 to ENGINE_LANES; 0 = nothing of the SMs */
};

/* The engine of a context's GPU; NULL: no memory. */
struct engine *engine_of(CUcontext context);

/* Settle; returns the place on the clock that has been reached. */
uint64_t engine_now(struct engine *engine);

/* Give a kernel its place, not before `earliest`; returns its end. */
uint64_t engine_place(struct engine *engine, uint64_t earliest, struct engine_cost cost);

/* Ask the node for the time of all that was placed since engine_now(). */
void engine_submit(struct engine *engine, struct engine_cost last);

#endif
