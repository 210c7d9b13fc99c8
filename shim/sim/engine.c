/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include "mps.h"

static struct engine engines[SIM_GPUS]; /* by ordinal */

struct engine *engine_of(CUcontext context) {
  struct engine *engine = &engines[context->device];
  if (!engine->joined) {
    if (!schedule_join(&engine->view, &driver.books.node, driver.books.slot, context->gpu)) {
      return NULL;
    }
    engine->joined = true;
    engine->percent = mps_percent();
    engine->end = engine_now(engine);
  }
  return engine;
}

uint64_t engine_now(struct engine *engine) {
  return schedule_received(&engine->view, schedule_now());
}

/* The `count` lanes that are free first. */
static void choose(const struct engine *engine, unsigned count, unsigned chosen[ENGINE_LANES]) {
  bool taken[ENGINE_LANES] = {false};
  for (unsigned n = 0; n < count; n++) {
    unsigned best = ENGINE_LANES;
    for (unsigned lane = 0; lane < ENGINE_LANES; lane++) {
      if (!taken[lane] && (best == ENGINE_LANES || engine->free_at[lane] < engine->free_at[best])) {
        best = lane;
      }
    }
    taken[best] = true;
    chosen[n] = best;
  }
}

/* On a part of the SMs: the engine's lanes are sixteenths of that part, a larger kernel takes longer. */
static struct engine_cost on_part(struct engine_cost cost, unsigned percent) {
  unsigned wanted = cost.lanes * 100; /* in hundredths of a part of the whole GPU */
  unsigned part = ENGINE_LANES * percent;
  if (percent >= 100 || cost.lanes == 0) {
    return cost;
  }
  if (wanted > part) {
    return (struct engine_cost){.ns = cost.ns * wanted / part, .lanes = ENGINE_LANES};
  }
  cost.lanes = (wanted + percent - 1) / percent;
  return cost;
}

uint64_t engine_place(struct engine *engine, uint64_t earliest, struct engine_cost cost) {
  cost = on_part(cost, engine->percent);
  if (cost.lanes == 0) {
    return earliest + cost.ns;
  }
  unsigned chosen[ENGINE_LANES];
  if (cost.lanes >= ENGINE_LANES) {
    uint64_t start = earliest > engine->end ? earliest : engine->end;
    for (unsigned lane = 0; lane < ENGINE_LANES; lane++) {
      engine->free_at[lane] = start + cost.ns;
    }
    return engine->end = start + cost.ns;
  }
  choose(engine, cost.lanes, chosen);
  uint64_t start = engine->free_at[chosen[cost.lanes - 1]];
  start = earliest > start ? earliest : start;
  for (unsigned n = 0; n < cost.lanes; n++) {
    engine->free_at[chosen[n]] = start + cost.ns;
  }
  engine->end = start + cost.ns > engine->end ? start + cost.ns : engine->end;
  return start + cost.ns;
}

void engine_submit(struct engine *engine, struct engine_cost last) {
  schedule_want(&engine->view, engine->end, last.ns > UINT32_MAX ? UINT32_MAX : (uint32_t)last.ns);
}
