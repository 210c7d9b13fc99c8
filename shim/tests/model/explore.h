/* SPDX-License-Identifier: Apache-2.0
 *
 * Runners that are coroutines, through all interleavings with at most so many preemptions and kills.
 *
 * A run is fixed by its decisions: at which step another runner goes on, or the running one is killed. After
 * the last one everybody runs to his end. Includes stand before; what is declared here first, the model
 * gives.
 */
#ifndef ALIQUOT_EXPLORE_H
#define ALIQUOT_EXPLORE_H

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

enum { RUNNERS = 5, STACK = 256 << 10, DEPTH = 6 };

/* --- the model's --- */

static const char *model_name(void);
static void model_reset(void);
static bool model_has(int runner);
static void model_script(int runner);
/* It has ended, or was killed. */
static void model_gone(int runner, bool killed);
/* Its own memory is there now, `first`: for the first time; and is put away. */
static void model_arrive(int runner, bool first);
static void model_depart(int runner);
/* Everybody has ended. */
static void model_end(void);

/* --- */

struct runner {
  ucontext_t context;
  bool started;
  bool ended;
};

struct decision {
  unsigned step;
  int next; /* runner to go on with; -1: kill the running one */
};

static struct runner runners[RUNNERS];
static char stacks[RUNNERS][STACK];
static ucontext_t scheduler;
static int running;
static unsigned steps;
static bool stuck; /* the running one waits for another */
static struct decision decisions[DEPTH];
static unsigned decided;
static unsigned long runs;

static void fail(const char *what) {
  printf("%s: %s; step %u of runner %d, after", model_name(), what, steps, running);
  for (unsigned i = 0; i < decided; i++)
    printf(decisions[i].next < 0 ? " kill@%u" : " %2$d@%1$u", decisions[i].step, decisions[i].next);
  printf("\n");
  exit(1);
}

static void next_step(void) {
  int self = running;
  model_depart(self);
  swapcontext(&runners[self].context, &scheduler);
  model_arrive(self, false);
}

static void end_of(int runner, bool killed) {
  runners[runner].ended = true;
  model_gone(runner, killed);
}

static void body(int runner) {
  model_script(runner);
  end_of(runner, false);
  swapcontext(&runners[runner].context, &scheduler);
}

/* Lets one go on until its next step. */
static void go_on(int runner) {
  struct runner *next = &runners[runner];
  running = runner;
  stuck = false;
  if (!next->started) {
    next->started = true;
    model_arrive(runner, true);
    getcontext(&next->context);
    next->context.uc_stack.ss_sp = stacks[runner];
    next->context.uc_stack.ss_size = STACK;
    next->context.uc_link = NULL;
    makecontext(&next->context, (void (*)(void))body, 1, runner);
  }
  swapcontext(&scheduler, &next->context);
}

static bool can_go_on(int runner) {
  return model_has(runner) && !runners[runner].ended;
}

static int other_than(int runner) {
  for (int i = 1; i < RUNNERS; i++)
    if (can_go_on((runner + i) % RUNNERS))
      return (runner + i) % RUNNERS;
  return -1;
}

/* One run with the decisions made so far; how many steps it had, and in `owner` whose each was. */
static unsigned run(int8_t *owner, unsigned room) {
  unsigned next = 0;
  int current = 0;
  for (int i = 0; i < RUNNERS; i++)
    runners[i].started = runners[i].ended = false;
  model_reset();
  steps = 0;
  runs++;
  while (current >= 0) {
    bool now = next < decided && decisions[next].step == steps;
    if (now && decisions[next].next < 0)
      end_of(current, true);
    else if (now)
      current = decisions[next].next;
    next += now;
    if (!can_go_on(current)) {
      current = other_than(current);
      continue;
    }
    if (steps >= room)
      fail("a run without an end");
    owner[steps++] = (int8_t)current;
    go_on(current);
    if (stuck && other_than(current) >= 0)
      current = other_than(current);
  }
  unsigned taken = steps;
  model_end();
  return taken;
}

static void explore(unsigned preemptions, unsigned kills) {
  enum { ROOM = 4000 };
  int8_t *owner = malloc(ROOM);
  if (!owner)
    exit(2);
  unsigned count = run(owner, ROOM);
  unsigned first = decided ? decisions[decided - 1].step + 1 : 0;
  decided++;
  for (unsigned step = first; step < count; step++) {
    decisions[decided - 1] = (struct decision){step, -1};
    if (kills > 0)
      explore(preemptions, kills - 1);
    for (int runner = 0; preemptions > 0 && runner < RUNNERS; runner++) {
      decisions[decided - 1] = (struct decision){step, runner};
      if (runner != owner[step] && model_has(runner))
        explore(preemptions - 1, kills);
    }
  }
  decided--;
  free(owner);
}

#endif
