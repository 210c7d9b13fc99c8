/* SPDX-License-Identifier: Apache-2.0
 *
 * The slow ways of a turn.
 */
#include "turn.h"

#include "contexts.h"
#include "streams.h"

/* A kernel that waits for a later launch of itself must not be waited for any longer. */
#define PATIENCE_NS   250000000ULL
#define FIRST_LOOK_NS 50000ULL
#define LAST_LOOK_NS  1000000ULL

AQ_RARE static struct aq_share *ask_payer(CUstream stream) {
  CUdevice device = -1;
  struct aq_own_calls calls = aq_own_calls_begin();
  CUresult result = aq_stream_device(stream, &device);
  aq_own_calls_end(&calls);
  return result == CUDA_SUCCESS ? aq_device_share(device) : NULL;
}

/* NULL: none, or it is not paced. */
static inline struct aq_share *payer(CUstream stream) {
  struct aq_share *share = aq_sole_device() == 0 ? aq_device_share(0) : ask_payer(stream);
  return share && aq_share_is_paced(share) ? share : NULL;
}

/* True while it is better to learn what the kernel costs than to guess once more. */
static bool waits_for_price(const struct aq_turn *turn) {
  return turn->guessed && __atomic_load_n(&turn->price->pending, __ATOMIC_RELAXED) > 0 &&
         aq_budget_holds(turn->share);
}

/* How long it waits for what was launched on borrowed time before; 0: little of that is in flight. */
static uint64_t behind_ns(struct aq_share *share, uint64_t *waited_ns) {
  if (!aq_budget_borrows(share) || aq_probes_behind(share) <= AQ_LEAD_NS)
    return 0;
  *waited_ns += LAST_LOOK_NS;
  if (*waited_ns < PATIENCE_NS)
    return LAST_LOOK_NS;
  aq_probes_give_up(share);
  return 0;
}

static void pay(struct aq_turn *turn) {
  uint64_t look_ns = FIRST_LOOK_NS;
  uint64_t looked_ns = 0;
  uint64_t waited_ns = 0;
  for (;;) {
    uint64_t wait_ns = 0;
    turn->guessed = !aq_price_is_known(turn->price);
    turn->cost_ns = aq_price_cost(turn->price);
    if (looked_ns < PATIENCE_NS && waits_for_price(turn)) {
      wait_ns = look_ns;
      looked_ns += look_ns;
      look_ns = look_ns < LAST_LOOK_NS ? 2 * look_ns : look_ns;
      if (looked_ns >= PATIENCE_NS)
        aq_price_raise(turn->price, turn->key, looked_ns);
    } else if (aq_purse_take(turn->share, turn->cost_ns)) {
      return;
    } else {
      wait_ns = behind_ns(turn->share, &waited_ns);
      if (wait_ns == 0)
        wait_ns = aq_budget_draw(turn->share, turn->cost_ns);
    }
    if (wait_ns > 0)
      aq_budget_pause(turn->share, wait_ns);
    aq_probes_poll();
  }
}

/* A launch that is to be measured, or does not find its cost in the purse. */
AQ_RARE static void wait_for_turn(struct aq_turn *turn, bool due, CUstream stream, bool per_thread) {
  aq_probes_poll();
  pay(turn);
  if (turn->guessed)
    aq_price_guessed(turn->price, turn->cost_ns, 1);
  bool unmeasured = turn->guessed && __atomic_load_n(&turn->price->pending, __ATOMIC_RELAXED) == 0;
  bool unseen = aq_probes_unseen(turn->share) > AQ_LEAD_NS / 2 && aq_budget_borrows(turn->share);
  if (due || unmeasured || unseen)
    turn->probe = aq_probe_begin(turn->share, turn->price, turn->key, stream, per_thread);
}

void aq_turn_begin(struct aq_turn *turn, const struct aq_launch *launch, CUstream stream, bool per_thread) {
  turn->share = payer(stream);
  if (!turn->share)
    return;
  if (aq_is_captured(stream, per_thread)) {
    turn->share = NULL;
    return;
  }
  turn->key = aq_price_key(launch, turn->share->index);
  turn->price = aq_price_find(turn->key);
  turn->cost_ns = aq_price_cost(turn->price);
  turn->guessed = false;
  turn->probe = NULL;
  bool due = aq_price_count(turn->price);
  if (due || !aq_price_is_known(turn->price) || !aq_purse_take(turn->share, turn->cost_ns))
    wait_for_turn(turn, due, stream, per_thread);
}

void aq_turn_settle(struct aq_turn *turn, CUstream stream, bool launched) {
  if (turn->probe)
    aq_probe_end(turn->probe, stream, launched);
  if (launched)
    return;
  aq_purse_give(turn->share, turn->cost_ns);
  if (turn->guessed)
    aq_price_guessed(turn->price, turn->cost_ns, -1);
}

void aq_turns_doubt_graph(CUgraphExec exec) {
  const struct aq_launch launch = {.function = exec};
  for (CUdevice device = 0; aq_device_exists(device); device++)
    if (aq_device_share(device) && aq_share_is_paced(aq_device_share(device)))
      aq_price_doubt(aq_price_key(&launch, aq_device_share(device)->index));
}

void aq_turns_reset(void) {
  aq_purses_reset();
  aq_prices_reset();
  aq_probes_reset();
}
