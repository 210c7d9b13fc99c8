/* SPDX-License-Identifier: Apache-2.0
 *
 * The server: a process that has the GPU as its clients' owner. It takes no memory of its own here; its slot
 * on the node is what clients refer to, and what tells that it died.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "books.h"
#include "mps_control.h"
#include "sight.h"

#define LOOK_NS          20000000L
#define MOST_DESCRIPTORS 256

struct began {
  uint32_t slot; /* 0: it could not */
  uint64_t life;
};

unsigned mps_server_clients(const struct mps_daemon *daemon, uint32_t *slots, unsigned most) {
  const struct sim_state *state = daemon->node.state;
  uint32_t last = atomic_load(&state->slots_used);
  unsigned count = 0;
  for (uint32_t slot = 1; slot <= last && daemon->server_slot != 0; slot++) {
    bool is_client = slot != daemon->server_slot &&
                     atomic_load(&state->mps[slot].server) == daemon->server_slot &&
                     atomic_load(&state->mps[slot].server_life) == daemon->server_life;
    if (is_client && (atomic_load(&state->slot[slot].life) & 1) && slots_alive(&daemon->node, slot)) {
      if (count < most) {
        slots[count] = slot;
      }
      count++;
    }
  }
  return count;
}

/* In exclusive mode the server must be the only one on its GPUs. */
static bool has_gpus(const struct node *node, const unsigned *gpus, unsigned count, uint32_t self) {
  const struct sim_state *state = node->state;
  uint32_t last = atomic_load(&state->slots_used);
  for (unsigned i = 0; i < count; i++) {
    uint32_t mode = atomic_load(&state->gpu[gpus[i]].compute_mode);
    slots_sweep(node, gpus[i], SIM_ANY, self);
    for (uint32_t slot = 1; mode != 0 && slot <= last; slot++) {
      bool alive = atomic_load(&state->slot[slot].life) & 1;
      if (mode == 2 ||
          (slot != self && alive && atomic_load(&state->slot[slot].holding[gpus[i]].contexts) > 0)) {
        return false;
      }
    }
  }
  return count > 0;
}

/* After a fault the server takes no clients until all that saw it are gone. */
static void serve(struct mps_daemon *daemon) {
  _Atomic uint32_t *fault = &daemon->node.state->mps[daemon->server_slot].fault;
  for (;;) {
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    if (atomic_load(fault) != 0 && mps_server_clients(daemon, NULL, 0) == 0) {
      atomic_store(fault, 0);
    }
  }
}

static void server(struct mps_daemon *daemon, int told) {
  struct books books = {0};
  struct began began = {0};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = 3; fd < MOST_DESCRIPTORS;
       fd++) { /* who asked for a server waits for the end of its connection */
    if (fd != told) {
      close(fd);
    }
  }
  prctl(PR_SET_NAME, "nvidia-cuda-mps");
  if (node_open(&books.node, node_root()) == NODE_OK &&
      (books.slot = slots_claim(&books.node, node_root())) != 0) {
    struct sight sight = sight_take(books.node.state, node_root(), getenv("CUDA_VISIBLE_DEVICES"));
    if (sight.part == 0 && has_gpus(&books.node, sight.gpus, sight.count, books.slot)) {
      struct sim_mps *mine = &books.node.state->mps[books.slot];
      began = (struct began){books.slot, atomic_load(&books.node.state->slot[books.slot].life)};
      atomic_store(&mine->server_life, began.life);
      atomic_store(&mine->server, books.slot);
      for (unsigned i = 0; i < sight.count; i++) {
        books_set_contexts(&books, sight.gpus[i], 1);
      }
      daemon->node = books.node;
      daemon->server_slot = began.slot;
      daemon->server_life = began.life;
    }
  }
  bool heard = write(told, &began, sizeof began) == (ssize_t)sizeof began;
  close(told);
  if (!heard || began.slot == 0) {
    _exit(1);
  }
  serve(daemon);
}

bool mps_server_start(struct mps_daemon *daemon, uid_t uid) {
  int ends[2];
  struct began began = {0};
  if (daemon->server != 0) {
    return true;
  }
  if (pipe2(ends, 0) != 0) {
    return false;
  }
  fflush(daemon->log);
  pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    server(daemon, ends[1]);
    _exit(1);
  }
  close(ends[1]);
  bool begun = pid > 0 && read(ends[0], &began, sizeof began) == (ssize_t)sizeof began && began.slot != 0;
  close(ends[0]);
  if (!begun) {
    if (pid > 0) {
      waitpid(pid, NULL, 0);
    }
    mps_log(daemon, "Failed to start a server for user %u: the GPU is not to be had", (unsigned)uid);
    return false;
  }
  daemon->server = pid;
  daemon->server_uid = uid;
  daemon->server_slot = began.slot;
  daemon->server_life = began.life;
  mps_log(daemon, "Starting new server %d for user %u", (int)pid, (unsigned)uid);
  return true;
}

void mps_server_look(struct mps_daemon *daemon) {
  if (daemon->server != 0 && waitpid(daemon->server, NULL, WNOHANG) == daemon->server) {
    mps_log(daemon, "Server %d exited", (int)daemon->server);
    daemon->server = 0;
    daemon->server_slot = 0;
  }
}

void mps_server_stop(struct mps_daemon *daemon) {
  if (daemon->server != 0) {
    kill(daemon->server, SIGKILL);
    waitpid(daemon->server, NULL, 0);
    mps_log(daemon, "Server %d was shut down", (int)daemon->server);
    daemon->server = 0;
    daemon->server_slot = 0;
  }
}
