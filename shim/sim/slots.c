/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "groups.h"
#include "meter.h"
#include "mig.h"
#include "shared.h"

/* A dying process drops its POSIX lock a moment before its OFD lock; one that only closed its descriptors
 * keeps the latter. This is how long we look before we call it the second kind. */
#define DYING_LOOKS   200
#define DYING_STEP_NS 100000

static struct flock write_lock(off_t byte) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
}

/* F_GETLK never reports the caller's own POSIX locks; OFD locks it reports with pid -1. */
static bool locked(const struct node *node, off_t byte, pid_t *owner) {
  struct flock lock = write_lock(byte);
  if (fcntl(node->fd, F_GETLK, &lock) != 0) {
    return true; /* without an answer nobody is declared dead */
  }
  if (owner) {
    *owner = lock.l_pid;
  }
  return lock.l_type != F_UNLCK;
}

static bool is_self(const struct node *node, const struct sim_slot *slot) {
  return slot->pid == (uint64_t)getpid() && slot->pidns_inode == node->self.pidns_inode &&
         slot->exec_id == node->self.exec_id;
}

bool slots_alive(const struct node *node, uint32_t number) {
  struct sim_slot *slot = &node->state->slot[number];
  if (atomic_load(&slot->kind) != SIM_PROCESS) {
    return shared_alive(node, number);
  }
  if (locked(node, number, NULL) || is_self(node, slot)) {
    return true;
  }
  if (!locked(node, SIM_OFD_BASE + number, NULL)) {
    return false;
  }
  for (int look = 0; look < DYING_LOOKS && !atomic_load(&slot->descriptorless); look++) {
    nanosleep(&(struct timespec){.tv_nsec = DYING_STEP_NS}, NULL);
    if (!locked(node, SIM_OFD_BASE + number, NULL)) {
      return false;
    }
  }
  atomic_store(&slot->descriptorless, 1);
  return true;
}

unsigned slots_pid(const struct node *node, uint32_t number) {
  const struct sim_slot *slot = &node->state->slot[number];
  pid_t pid = 0;
  if (locked(node, number, &pid)) {
    return pid > 0 ? (unsigned)pid : 0;
  }
  bool same_namespace = slot->pidns_inode == node->self.pidns_inode;
  return same_namespace ? (unsigned)slot->pid : 0;
}

static struct meter_move move_of(const struct node *node, uint32_t slot, uint32_t gpu, enum sim_which which) {
  struct sim_state *state = node->state;
  struct sim_group *group = &state->group[atomic_load(&state->slot[slot].group)];
  struct sim_meter *meters[SIM_METERS] = {
      [SIM_GPU_PHYSICAL] = mig_meter(state, gpu, atomic_load(&state->slot[slot].part)),
      [SIM_GROUP_PHYSICAL] = &group->gpu[gpu].measure[SIM_PHYSICAL],
      [SIM_GROUP_REQUESTED] = &group->gpu[gpu].measure[SIM_REQUESTED],
  };
  return (struct meter_move){
      .state = state, .meter = meters[which], .slot = slot, .gpu = gpu, .which = which};
}

static uint64_t held_itself(const struct node *node, uint32_t number, uint32_t gpu,
                            enum sim_measure measure) {
  struct meter_move move =
      move_of(node, number, gpu, measure == SIM_PHYSICAL ? SIM_GPU_PHYSICAL : SIM_GROUP_REQUESTED);
  return meter_held(&move);
}

uint64_t slots_held(const struct node *node, uint32_t number, uint32_t gpu, enum sim_measure measure) {
  const struct sim_slot *slot = &node->state->slot[number];
  uint64_t life = atomic_load(&slot->life);
  uint64_t bytes = held_itself(node, number, gpu, measure);
  uint32_t last = atomic_load(&slot->has_shared) ? atomic_load(&node->state->slots_used) : 0;
  for (uint32_t other = 1; other <= last; other++) {
    const struct sim_slot *shared = &node->state->slot[other];
    if ((atomic_load(&shared->life) & 1) &&
        __atomic_load_n(&shared->shared.owner, __ATOMIC_RELAXED) == number &&
        shared->shared.owner_life == life) {
      bytes += held_itself(node, other, gpu, measure);
    }
  }
  return bytes;
}

void slots_reap(const struct node *node, uint32_t number, uint64_t life) {
  struct sim_slot *slot = &node->state->slot[number];
  for (uint32_t gpu = 0; gpu < node->state->gpus; gpu++) {
    for (enum sim_which which = 0; which < SIM_METERS; which++) {
      struct meter_move move = move_of(node, number, gpu, which);
      meter_withdraw(&move, life);
      meter_detach(&move);
    }
  }
  atomic_compare_exchange_strong(&slot->life, &life, life + 1);
}

static bool holds(const struct sim_slot *slot, uint32_t gpu) {
  const struct sim_holding *holding = &slot->holding[gpu];
  const struct sim_change *change = &holding->change[atomic_load(&holding->seq) & 1];
  return change->before[SIM_PHYSICAL] | change->after[SIM_PHYSICAL];
}

bool slots_touches(const struct sim_slot *slot, uint32_t gpu) {
  return holds(slot, gpu) || atomic_load(&slot->holding[gpu].contexts) > 0;
}

void slots_sweep(const struct node *node, uint32_t gpu, uint32_t group, uint32_t except) {
  struct sim_state *state = node->state;
  uint32_t last = atomic_load(&state->slots_used);
  for (uint32_t number = 1; number <= last; number++) {
    struct sim_slot *slot = &state->slot[number];
    uint64_t life = atomic_load(&slot->life);
    if (!(life & 1) || number == except || (gpu != SIM_ANY && !holds(slot, gpu)) ||
        (group != SIM_ANY && atomic_load(&slot->group) != group)) {
      continue;
    }
    if (!slots_alive(node, number)) {
      slots_reap(node, number, life);
    }
  }
}

/* Each newcomer looks at a few slots, so that the dead do not pile up while memory is plentiful. */
static void sweep_some(const struct node *node) {
  struct sim_state *state = node->state;
  uint32_t last = atomic_load(&state->slots_used);
  for (int looks = 0; looks < 4 && last > 0; looks++) {
    uint32_t number = 1 + atomic_fetch_add(&state->janitor, 1) % last;
    uint64_t life = atomic_load(&state->slot[number].life);
    if ((life & 1) && !slots_alive(node, number)) {
      slots_reap(node, number, life);
    }
  }
}

/* `shared`: what the slot stands for, if not for this process. */
static void begin_life(const struct node *node, uint32_t number, const struct sim_shared *shared) {
  static const struct sim_shared none = {.kind = SIM_PROCESS};
  struct sim_slot *slot = &node->state->slot[number];
  /* Memory is of its maker's group, which is in use as long as the maker lives: no need to join it. */
  atomic_store(&slot->group, shared ? atomic_load(&node->state->slot[shared->owner].group) : 0);
  atomic_store(&slot->part, shared ? atomic_load(&node->state->slot[shared->owner].part) : node->part);
  atomic_store(&node->state->mps[number].server, 0);
  atomic_store(&node->state->mps[number].fault, 0);
  atomic_store(&node->state->mps[number].lane, mig_lane(node->part));
  atomic_store(&slot->kind, shared ? shared->kind : SIM_PROCESS);
  atomic_store(&slot->has_shared, 0);
  slot->shared = shared ? *shared : none;
  atomic_store(&slot->descriptorless, 0);
  slot->pid = node->self.pid;
  slot->pidns_inode = node->self.pidns_inode;
  slot->exec_id = node->self.exec_id;
  snprintf(slot->command, sizeof slot->command, "%.*s", (int)sizeof slot->command - 1,
           program_invocation_short_name);
  for (uint32_t gpu = 0; gpu < SIM_GPUS; gpu++) {
    struct sim_holding *holding = &slot->holding[gpu];
    memset(holding->change, 0, sizeof holding->change);
    atomic_store(&holding->contexts, 0);
    atomic_store(&node->state->pace[number][gpu].began_ns, 0);
    atomic_store(&holding->peak[SIM_PHYSICAL], 0);
    atomic_store(&holding->peak[SIM_REQUESTED], 0);
    atomic_fetch_add(&holding->seq, 2); /* beyond the sweepers' "back to nothing" */
  }
  uint32_t last = atomic_load(&node->state->slots_used);
  while (last < number && !atomic_compare_exchange_weak(&node->state->slots_used, &last, number)) {
  }
  atomic_fetch_add(&slot->life, 1);
}

/* Hold the slot's OFD lock through the descriptor behind the mapping, and find it free. */
static bool reserve(const struct node *node, uint32_t number) {
  struct sim_slot *slot = &node->state->slot[number];
  if (atomic_load(&slot->life) & 1) {
    return false;
  }
  struct flock lock = write_lock(SIM_OFD_BASE + number);
  if (fcntl(node->fd, F_OFD_SETLK, &lock) != 0) {
    return false;
  }
  if (!(atomic_load(&slot->life) & 1) && !locked(node, number, NULL)) {
    return true;
  }
  lock.l_type = F_UNLCK;
  fcntl(node->fd, F_OFD_SETLK, &lock);
  return false;
}

static uint32_t reserve_any(const struct node *node) {
  for (int attempt = 0; attempt < 2; attempt++) {
    for (uint32_t number = 1; number < SIM_SLOTS; number++) {
      if (reserve(node, number)) {
        return number;
      }
    }
    slots_sweep(node, SIM_ANY, SIM_ANY, 0);
  }
  return 0;
}

/* From here on only the mapping keeps the OFD lock: it goes with the memory of the process, at exit or exec,
 * and no child has it. The POSIX lock needs another descriptor, opened after the last close. */
static bool settle(struct node *node, uint32_t number, const char *root) {
  if (madvise(node->state, sizeof *node->state, MADV_DONTFORK) != 0) {
    return false;
  }
  struct node second;
  int first = node->fd;
  node->fd = -1;
  close(first);
  if (node_open(&second, root) != NODE_OK) {
    return false;
  }
  munmap(second.state, sizeof *second.state);
  free(second.root);
  node->fd = second.fd;
  struct flock lock = write_lock(number);
  return fcntl(node->fd, F_SETLK, &lock) == 0;
}

uint32_t slots_claim(struct node *node, const char *root) {
  uint32_t number = reserve_any(node);
  if (number == 0 || !settle(node, number, root)) {
    return 0;
  }
  begin_life(node, number, NULL);
  if (!groups_join(node, number)) {
    slots_reap(node, number, atomic_load(&node->state->slot[number].life));
    return 0;
  }
  sweep_some(node);
  return number;
}

uint32_t slots_claim_shared(const struct node *node, int fd, const struct sim_shared *shared) {
  uint32_t number = reserve_any(node);
  if (number == 0) {
    return 0;
  }
  struct flock held = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
  bool anchored = fcntl(fd, F_OFD_SETLK, &held) == 0;
  if (anchored) {
    begin_life(node, number, shared);
    atomic_store(&node->state->slot[shared->owner].has_shared, 1);
  }
  struct flock reservation = write_lock(SIM_OFD_BASE + number);
  reservation.l_type = F_UNLCK;
  fcntl(node->fd, F_OFD_SETLK, &reservation);
  return anchored ? number : 0;
}
