/* SPDX-License-Identifier: Apache-2.0
 *
 * What MIG can make of a card.
 */
#ifndef SIM_MIG_CARDS_H
#define SIM_MIG_CARDS_H

#include <stdint.h>

/* A kind of GPU instance. Memory has 8 slices, compute 7; an instance's compute slices begin where its memory
 * slices do. */
struct mig_kind {
  unsigned profile; /* NVML_GPU_INSTANCE_PROFILE_* */
  unsigned id;      /* of the profile, as nvidia-smi numbers it */
  unsigned slices;  /* of compute */
  unsigned memory_slices;
  unsigned starts; /* bit mask: first memory slices that it can have */
  unsigned most;   /* at the same time */
};

#define MIG_KINDS 7U
extern const struct mig_kind mig_kinds[MIG_KINDS];

/* The same kind on one card. */
struct mig_size {
  const char *name;
  uint32_t memory_mib;
  uint32_t multiprocessors;
  uint32_t copy_engines, decoders, jpegs, ofas;
};

struct mig_card {
  uint32_t slice_multiprocessors; /* of a compute instance that is a part of its GPU instance, per slice */
  struct mig_size size[MIG_KINDS];
};

extern const struct mig_card mig_a100_40gb, mig_a100_80gb, mig_h100_80gb, mig_h200;

#endif
