/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the simulated nvidia-cuda-mps-control. The daemon has one thread and serves one connection at a
 * time.
 */
#ifndef SIM_MPS_CONTROL_H
#define SIM_MPS_CONTROL_H

#include <stdio.h>
#include <sys/types.h>

#include "mps.h"

struct mps_daemon {
  struct node node;
  const char *pipe_directory;
  const char *log_directory;
  FILE *log;
  bool any_user; /* -M: one server for the clients of all users */
  bool quitting;
  unsigned percent;                 /* default_active_thread_percentage */
  char memory_limit[MPS_LINE - 64]; /* "0=8000M,..." or nothing */
  pid_t server;                     /* 0: none runs */
  uid_t server_uid;
  uint32_t server_slot;
  uint64_t server_life;
};

void mps_log(struct mps_daemon *daemon, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Answer a line into `answer`, without a newline at its end. */
void mps_command(struct mps_daemon *daemon, char *line, char *answer, size_t size);

/* --- the server, mps_server.c --- */

/* Start one for a user if none runs; false: it could not have the GPU. */
bool mps_server_start(struct mps_daemon *daemon, uid_t uid);

/* Notice its death. */
void mps_server_look(struct mps_daemon *daemon);

void mps_server_stop(struct mps_daemon *daemon);

/* Clients that are alive. */
unsigned mps_server_clients(const struct mps_daemon *daemon, uint32_t *slots, unsigned most);

#endif
