/* SPDX-License-Identifier: Apache-2.0
 *
 * A launch's turn: held until the share has the GPU time that it is expected to take, and measured now and
 * then.
 */
#ifndef ALIQUOT_TURN_H
#define ALIQUOT_TURN_H

#include "abi.h"
#include "budget.h"
#include "capture.h"
#include "hooks.h"
#include "prices.h"
#include "probes.h"
#include "state.h"

struct aq_turn {
  struct aq_share *share; /* NULL: nothing to settle */
  struct aq_price *price;
  uint64_t cost_ns;
  uint64_t key;
  bool guessed;
  struct aq_probe *probe;
};

/* True if no launch of this process is paced now; the driver's calls of its own exports are not. */
static inline bool aq_turns_are_off(void) {
  if (aq_depth > 0)
    return true;
  for (CUdevice device = 0; aq_device_exists(device); device++) {
    const struct aq_share *share = aq_device_share(device);
    if (share && aq_share_is_paced(share))
      return false;
  }
  return true;
}

/* May wait, outside all locks. What is captured waits for nothing and costs nothing. */
void aq_turn_begin(struct aq_turn *turn, const struct aq_launch *launch, CUstream stream, bool per_thread);

AQ_RARE void aq_turn_settle(struct aq_turn *turn, CUstream stream, bool launched);

/* What came of it: a launch that failed costs nothing. */
static inline CUresult aq_turn_end(struct aq_turn *turn, CUstream stream, CUresult result) {
  if (turn->share && (turn->probe || result != CUDA_SUCCESS))
    aq_turn_settle(turn, stream, result == CUDA_SUCCESS);
  return result;
}

/* The executable graph means something else from now on, or nothing. */
void aq_turns_doubt_graph(CUgraphExec exec);

/* In a forked child. */
void aq_turns_reset(void);

#endif
