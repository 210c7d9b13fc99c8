/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of the part of `state` that says who has a GPU's time; schedule.h.
 */
#ifndef SIM_SCHEDULE_LAYOUT_H
#define SIM_SCHEDULE_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#define SIM_TURNS        4096U        /* remembered of the turns that processes had */
#define SIM_PERIOD_NS    166666667ULL /* NVML samples utilisation every 1/6 s to 1 s (nvml.h) */
#define SIM_GPU_PERIODS  64U
#define SIM_SLOT_PERIODS 16U

/* Two words that change together. The second holds a number that only grows. */
struct sim_pair {
  _Alignas(16) volatile uint64_t half[2];
};

/* Of a GPU. */
struct sim_schedule {
  _Alignas(64) struct sim_pair turn;              /* since when (ns) | owner, number of the turn */
  _Alignas(64) _Atomic uint64_t wants[2048 / 64]; /* bit per slot: may want GPU time */
  _Alignas(64) _Atomic uint64_t slice_ns; /* longest turn while others wait; 0 = until a kernel ends */
  _Alignas(64) _Atomic uint64_t busy[SIM_GPU_PERIODS]; /* period | ns in it */
  _Atomic uint64_t busy_ever;                          /* ns */
  struct sim_pair history[SIM_TURNS];                  /* start (ns) | owner, length, number */
};

/* Of a process on a GPU. */
struct sim_pace {
  _Alignas(64) _Atomic uint64_t wanted; /* ns of GPU time asked for, ever */
  struct sim_pair received;             /* ns received, ever | number and length of the turn counted last */
  _Atomic uint32_t step_ns;             /* one kernel */
  _Atomic uint64_t began_ns;            /* CLOCK_REALTIME; when the process first used the GPU */
  _Atomic uint64_t began_total;         /* received by then, by others in this slot */
  _Atomic uint64_t used[SIM_SLOT_PERIODS];
};

#endif
