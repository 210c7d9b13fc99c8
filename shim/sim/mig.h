/* SPDX-License-Identifier: Apache-2.0
 *
 * MIG: GPU instances (memory, and compute slices) and in them compute
 * instances, each of which is a MIG device. A process uses one MIG device at
 * most, or whole GPUs.
 *
 * Mode and all instances of a GPU are one atomic word: a change takes place
 * whole or not at all, whoever dies of it, and nobody waits. Functions that
 * take a `word` look at one state of it. Thread safe.
 */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include "mig_cards.h"
#include "node.h"

struct mig_instance {
  unsigned kind;  /* index into mig_kinds */
  unsigned start; /* first memory slice */
};

/* A compute instance. */
struct mig_compute {
  struct mig_instance in;
  unsigned slice; /* first compute slice, in the GPU */
  unsigned size;
};

/* --- what there is --- */

uint64_t mig_word(const struct sim_state *state, uint32_t gpu);
bool mig_is_on(uint64_t word);
bool mig_will_be_on(uint64_t word);

/* False: no GPU instance begins there, or no compute instance. */
bool mig_instance_at(uint64_t word, unsigned start, struct mig_instance *instance);
bool mig_compute_at(uint64_t word, unsigned slice, struct mig_compute *compute);

/* All of them by their ids; returns how many. */
unsigned mig_instances(uint64_t word, struct mig_instance instances[SIM_SLICES]);
unsigned mig_computes(uint64_t word, struct mig_compute computes[SIM_SLICES]);

/* Bit mask of the places where one more would begin: memory slices; slices within the GPU instance. */
unsigned mig_free_starts(uint64_t word, unsigned kind);
unsigned mig_free_slices(uint64_t word, struct mig_instance in, unsigned size);

/* The same in an empty one; 0: there are no such compute instances. */
unsigned mig_possible_slices(unsigned kind, unsigned size);

/* How many more instances of the kind fit. */
unsigned mig_remaining(uint64_t word, unsigned kind);

unsigned mig_instance_id(struct mig_instance instance);
unsigned mig_compute_id(struct mig_compute compute);

/* "1g.5gb", "1c.3g.20gb"; SIM_NAME bytes. */
void mig_name(const struct mig_card *card, struct mig_compute compute, char name[SIM_NAME]);
unsigned mig_multiprocessors(const struct mig_card *card, struct mig_compute compute);

/* The same place on the same GPU always has the same UUID, as with real ones. */
void mig_uuid(const struct sim_gpu *gpu, struct mig_compute compute, uint8_t uuid[16]);
void mig_uuid_text(const struct sim_gpu *gpu, struct mig_compute compute, char text[SIM_UUID_TEXT]);

/* --- a slot's part --- */

uint32_t mig_part(uint32_t gpu, struct mig_compute compute);
uint32_t mig_part_gpu(uint32_t part);
unsigned mig_part_slice(uint32_t part);
bool mig_same_instance(uint32_t one, uint32_t other);

/* The compute instance behind a part; false: it is gone. */
bool mig_part_compute(const struct sim_state *state, uint32_t part, struct mig_compute *compute);

/* Meter of the memory that a slot with this part takes, and how much there is; part 0: the GPU's. */
struct sim_meter *mig_meter(struct sim_state *state, uint32_t gpu, uint32_t part);
uint64_t mig_memory(const struct sim_state *state, uint32_t gpu, uint32_t part);

/* All memory that is taken of a GPU, also within its instances. */
uint64_t mig_used(struct sim_state *state, uint32_t gpu);

/* Whose turns the MIG device's users are in: index into the state's schedules; part 0: 0. */
uint32_t mig_lane(uint32_t part);

/* After a slot's use of the part, or of a whole GPU, is on record: whether that is allowed. */
bool mig_enter(struct sim_state *state, uint32_t part);
bool mig_enter_whole(struct sim_state *state, uint32_t gpu);

/* --- changes --- */

enum mig_answer {
  MIG_DONE,
  MIG_OFF,     /* not in MIG mode */
  MIG_ABSENT,  /* no such instance */
  MIG_NO_ROOM, /* something is in its place */
  MIG_IN_USE,  /* processes use it, or there are instances in it */
};

#define MIG_ANYWHERE UINT32_MAX

/* `start`: first memory slice, or MIG_ANYWHERE. */
enum mig_answer mig_create(struct sim_state *state, uint32_t gpu, unsigned kind, uint32_t start,
                           struct mig_instance *made);
enum mig_answer mig_destroy(const struct node *node, uint32_t gpu, unsigned start);

/* `slice`: within the GPU instance, or MIG_ANYWHERE. */
enum mig_answer mig_create_compute(struct sim_state *state, uint32_t gpu, struct mig_instance in,
                                   unsigned size, uint32_t slice, struct mig_compute *made);
enum mig_answer mig_destroy_compute(const struct node *node, uint32_t gpu, unsigned slice);

/* The mode is pending in any case; MIG_IN_USE: until the next reset. */
enum mig_answer mig_set_mode(const struct node *node, uint32_t gpu, bool on);

/* As a reset of the GPU does it: the pending mode holds, instances are gone. MIG_IN_USE: nothing changed. */
enum mig_answer mig_reset(const struct node *node, uint32_t gpu);

#endif
