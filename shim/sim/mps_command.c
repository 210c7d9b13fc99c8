/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon is asked: by clients, and by the control program's user.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mps_control.h"
#include "slots.h"

/* CUresult */
#define SERVER_NOT_READY 807
#define CLIENTS          48U
#define MOST_CLIENTS     808

typedef void command(struct mps_daemon *daemon, char *rest, char *answer, size_t size);

/* "client UID SLOT": who initialises CUDA. */
static void client(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  unsigned uid = (unsigned)strtoul(rest, NULL, 10);
  if (daemon->server != 0 && !daemon->any_user && daemon->server_uid != uid) {
    if (mps_server_clients(daemon, NULL, 0) > 0) {
      snprintf(answer, size, "wait"); /* one user at a time, as NVIDIA documents it */
      return;
    }
    mps_server_stop(daemon);
  }
  if (!mps_server_start(daemon, uid)) {
    snprintf(answer, size, "error %d", SERVER_NOT_READY);
  } else if (atomic_load(&daemon->node.state->mps[daemon->server_slot].fault) != 0) {
    snprintf(answer, size, "error %d", SERVER_NOT_READY);
  } else if (mps_server_clients(daemon, NULL, 0) >= CLIENTS) {
    snprintf(answer, size, "error %d", MOST_CLIENTS);
  } else {
    snprintf(answer, size, "server %u %llu %u %s", daemon->server_slot,
             (unsigned long long)daemon->server_life, daemon->percent, daemon->memory_limit);
    mps_log(daemon, "User %u: accepting a connection", uid);
  }
}

static bool is_server(const struct mps_daemon *daemon, const char *rest) {
  return daemon->server != 0 && strtol(rest, NULL, 10) == daemon->server;
}

static void get_server_list(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  (void)rest;
  if (daemon->server != 0) {
    snprintf(answer, size, "%d", (int)daemon->server);
  }
}

static void start_server(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  const char *uid = strstr(rest, "-uid");
  if (!mps_server_start(daemon, uid ? (uid_t)strtoul(uid + 4, NULL, 10) : 0)) {
    snprintf(answer, size, "Failed to start server");
  }
}

static void get_server_status(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  bool known = is_server(daemon, rest);
  bool fault = known && atomic_load(&daemon->node.state->mps[daemon->server_slot].fault) != 0;
  snprintf(answer, size, "%s", !known ? "Server not found" : fault ? "FAULT" : "ACTIVE");
}

static void get_client_list(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  uint32_t slots[CLIENTS];
  size_t used = 0;
  unsigned count = is_server(daemon, rest) ? mps_server_clients(daemon, slots, CLIENTS) : 0;
  for (unsigned i = 0; i < count && i < CLIENTS && used < size; i++) {
    used += (size_t)snprintf(answer + used, size - used, "%s%u", i ? "\n" : "",
                             slots_pid(&daemon->node, slots[i]));
  }
}

static void shutdown_server(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  if (is_server(daemon, rest)) {
    mps_server_stop(daemon);
  } else {
    snprintf(answer, size, "Server not found");
  }
}

/* `quit -t S` waits for clients so long, `quit` for ever, `quit -f` not at all; here they are ended at once
 * or after the time. */
static void quit(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  const char *timeout = strstr(rest, "-t");
  double left_s = timeout ? strtod(timeout + 2, NULL) : 0;
  (void)answer;
  (void)size;
  for (; left_s > 0 && mps_server_clients(daemon, NULL, 0) > 0; left_s -= 0.02) {
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  mps_server_stop(daemon);
  daemon->quitting = true;
}

static void set_percent(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  double percent = strtod(rest, NULL);
  if (percent <= 0 || percent > 100) {
    snprintf(answer, size, "Invalid active thread percentage: want more than 0, at most 100");
    return;
  }
  daemon->percent = percent < 1 ? 1 : (unsigned)percent;
  snprintf(answer, size, "%.1f", percent);
}

static void get_percent(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  (void)rest;
  snprintf(answer, size, "%u.0", daemon->percent);
}

/* Of one server: `PID PERCENT`. There is one, and both mean new clients. */
static void set_server_percent(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  if (!is_server(daemon, rest)) {
    snprintf(answer, size, "Server not found");
    return;
  }
  strtol(rest, &rest, 10);
  set_percent(daemon, rest, answer, size);
}

static void set_memory_limit(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  char device[64];
  char limit[64];
  if (sscanf(rest, "%63s %63s", device, limit) != 2) {
    snprintf(answer, size, "want a device and a size");
    return;
  }
  bool number = strspn(device, "0123456789") == strlen(device);
  snprintf(daemon->memory_limit, sizeof daemon->memory_limit, "%s=%s", number ? device : "0", limit);
}

static void get_memory_limit(struct mps_daemon *daemon, char *rest, char *answer, size_t size) {
  (void)rest;
  snprintf(answer, size, "%s", daemon->memory_limit);
}

void mps_command(struct mps_daemon *daemon, char *line, char *answer, size_t size) {
  static const struct {
    const char *name;
    command *run;
  } commands[] = {
      {"client", client},
      {"get_server_list", get_server_list},
      {"start_server", start_server},
      {"get_server_status", get_server_status},
      {"get_client_list", get_client_list},
      {"shutdown_server", shutdown_server},
      {"quit", quit},
      {"set_default_active_thread_percentage", set_percent},
      {"get_default_active_thread_percentage", get_percent},
      {"set_active_thread_percentage", set_server_percent},
      {"get_active_thread_percentage", get_percent},
      {"set_default_device_pinned_mem_limit", set_memory_limit},
      {"get_default_device_pinned_mem_limit", get_memory_limit},
  };
  size_t length = strcspn(line, " \n");
  *answer = '\0';
  mps_server_look(daemon);
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
    if (strlen(commands[i].name) == length && strncmp(commands[i].name, line, length) == 0) {
      commands[i].run(daemon, line + length, answer, size);
      return;
    }
  }
  snprintf(answer, size, "Unrecognized command: %.*s", (int)length, line);
}
