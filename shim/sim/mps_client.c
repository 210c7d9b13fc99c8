/* SPDX-License-Identifier: Apache-2.0
 *
 * libcuda as a client of MPS.
 *
 * As with a real driver, no daemon means no MPS: the program goes on by itself,
 * which the exclusive mode of the GPU then refuses while the server has it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "mps.h"
#include "schedule.h"
#include "slots.h"

#define AGAIN_NS     20000000L
#define LOOK_EACH_NS 10000000ULL /* whether the server is alive */

static struct {
  const struct node *node;
  uint32_t server; /* its slot; 0: no client */
  uint64_t server_life;
  unsigned percent;
  int fault; /* of a process that is no client; or the last word about the server */
  uint64_t looked_ns;
  char memory[MPS_LINE];
} client = {.percent = 100};

static struct sim_mps *mine(void) {
  return &client.node->state->mps[driver.books.slot];
}

/* A lane of GPU time of its own: one that nobody alive has. */
static void take_lane(const struct node *node, uint32_t slot) {
  struct sim_state *state = node->state;
  uint64_t me = (uint64_t)slot << 48 | (atomic_load(&state->slot[slot].life) & 0xffffffffffffULL);
  for (uint32_t lane = 0; lane < SIM_MPS_LANES; lane++) {
    uint64_t owner = atomic_load(&state->mps_lane[lane]);
    uint64_t life = atomic_load(&state->slot[owner >> 48].life) & 0xffffffffffffULL;
    bool taken = owner != 0 && (owner & 0xffffffffffffULL) == life && (life & 1);
    if (!taken && atomic_compare_exchange_strong(&state->mps_lane[lane], &owner, me)) {
      atomic_store(&state->schedule[SIM_GPUS + lane].slice_ns, SCHEDULE_SLICE_NS);
      atomic_store(&state->mps[slot].lane, SIM_GPUS + lane);
      return;
    }
  }
}

static unsigned wished_percent(unsigned most) {
  const char *text = getenv(MPS_PERCENT_ENV);
  double wish = text && *text ? strtod(text, NULL) : 100;
  unsigned percent = wish < 1 ? 1 : wish > 100 ? 100 : (unsigned)wish;
  return percent < most ? percent : most;
}

static int answered(const struct node *node, uint32_t slot, const char *answer) {
  unsigned server;
  unsigned percent;
  int error;
  unsigned long long life;
  char memory[MPS_LINE - 64] = "";
  if (sscanf(answer, "error %d", &error) == 1) {
    return error;
  }
  if (sscanf(answer, "server %u %llu %u %447s", &server, &life, &percent, memory) < 3 ||
      server >= SIM_SLOTS) {
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
  }
  const char *limit = getenv(MPS_MEMORY_ENV);
  client.node = node;
  client.server = server;
  client.server_life = life;
  client.percent = wished_percent(percent);
  snprintf(client.memory, sizeof client.memory, "%s", limit && *limit ? limit : memory);
  if (client.percent < 100) {
    take_lane(node, slot);
  }
  atomic_store(&node->state->mps[slot].server_life, life);
  atomic_store(&node->state->mps[slot].server, server);
  return CUDA_SUCCESS;
}

int mps_join(const struct node *node, uint32_t slot) {
  char line[MPS_LINE];
  char answer[MPS_LINE];
  const char *directory = getenv(MPS_PIPE_ENV);
  int saved = errno;
  client.node = node;
  snprintf(line, sizeof line, "client %u %u\n", (unsigned)geteuid(), slot);
  for (;;) {
    int fd = mps_connect(directory && *directory ? directory : MPS_PIPE_DEFAULT);
    if (fd < 0) {
      errno = saved; /* the program learns nothing of a daemon that is not there */
      return CUDA_SUCCESS;
    }
    bool told = mps_ask(fd, line, answer, sizeof answer);
    close(fd);
    if (!told) {
      return CUDA_ERROR_MPS_CONNECTION_FAILED;
    }
    if (strcmp(answer, "wait") != 0) {
      return answered(node, slot, answer);
    }
    nanosleep(&(struct timespec){.tv_nsec = AGAIN_NS}, NULL);
  }
}

static bool server_lives(void) {
  uint64_t now = schedule_now();
  if (atomic_load(&client.node->state->slot[client.server].life) != client.server_life) {
    return false;
  }
  if (now - client.looked_ns < LOOK_EACH_NS) {
    return true;
  }
  client.looked_ns = now;
  return slots_alive(client.node, client.server);
}

int mps_fault(void) {
  if (client.server != 0 && client.fault == 0) {
    int fault = (int)atomic_load(&client.node->state->mps[client.server].fault);
    client.fault = !server_lives() ? CUDA_ERROR_MPS_RPC_FAILURE : fault;
  }
  return client.fault;
}

void mps_raise(int error) {
  client.fault = error;
  if (client.server != 0) {
    atomic_store(&client.node->state->mps[client.server].fault, (uint32_t)error);
    atomic_store(&mine()->fault, (uint32_t)error);
  }
}

bool mps_excludes(uint32_t other_slot) {
  const struct sim_state *state = driver.books.node.state;
  bool together = client.server != 0 && (other_slot == client.server ||
                                         atomic_load(&state->mps[other_slot].server) == client.server);
  return !together;
}

bool mps_allows(unsigned ordinal, uint64_t bytes) {
  return client.server == 0 || bytes <= mps_memory_limit(client.memory, ordinal);
}

unsigned mps_percent(void) {
  return client.percent;
}
