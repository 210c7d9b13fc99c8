/* SPDX-License-Identifier: Apache-2.0
 *
 * Making faults, and memory that belongs to no share.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "books.h"
#include "events.h"
#include "mig.h"
#include "tool.h"

/* Positions of NVML's event bits, and its reasons for low clocks. */
#define DOUBLE_BIT_ECC      1
#define XID                 3
#define CLOCK               4
#define HW_SLOWDOWN         0x08U
#define HW_THERMAL_SLOWDOWN 0x40U
#define XID_DOUBLE_BIT_ECC  48
#define XID_FALLEN_OFF_BUS  79
#define XID_LARGEST         1023

int tool_gpu(const struct node *node, const char *name) {
  const struct sim_state *state = node->state;
  int found = -1;
  char *end;
  if (!name) {
    fprintf(stderr, "aliquot-sim: --gpu is missing: give the index or the UUID of a GPU\n");
    return -1;
  }
  unsigned long index = strtoul(name, &end, 10);
  if (*name && !*end && index < state->gpus) {
    return (int)index;
  }
  for (unsigned gpu = 0; gpu < state->gpus && strlen(name) > 4; gpu++) {
    char uuid[SIM_UUID_TEXT];
    node_uuid_text(&state->gpu[gpu], uuid);
    if (strncasecmp(uuid, name, strlen(name)) == 0) {
      found = found == -1 ? (int)gpu : -2;
    }
  }
  uint32_t part = tool_part(node, name);
  found = part ? (int)mig_part_gpu(part) : found;
  if (found < 0) {
    fprintf(stderr, "aliquot-sim: --gpu %s: %s; give 0 to %u, or a UUID of `aliquot-sim books`\n", name,
            found == -2 ? "more than one GPU begins so" : "no such GPU", state->gpus - 1);
    return -1;
  }
  return found;
}

static void happen(struct node *node, int gpu, uint32_t type, uint32_t data) {
  events_add(node->state, (struct event){.gpu = (uint32_t)gpu, .type = type, .data = data});
}

/* XIDs of the program that ran, not of the GPU (NVIDIA's "XID Errors", column of actions). */
static bool is_of_program(uint32_t code) {
  static const uint32_t codes[] = {13, 31, 43, 45, 68, 109};
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    if (codes[i] == code) {
      return true;
    }
  }
  return false;
}

static void xid(struct node *node, int gpu, uint32_t code) {
  if (!is_of_program(code)) {
    atomic_store(&node->state->gpu[gpu].faults.needs_reset, 1);
  }
  atomic_store(&node->state->gpu[gpu].faults.last_xid, code);
  happen(node, gpu, XID, code);
}

static int inject_xid(struct node *node, int gpu, const struct tool_options *options) {
  if (options->code == 0 || options->code > XID_LARGEST) {
    fprintf(stderr, "aliquot-sim: inject xid needs --code with a number from 1 to %u\n", XID_LARGEST);
    return 2;
  }
  xid(node, gpu, options->code);
  return 0;
}

static int inject_ecc(struct node *node, int gpu, const struct tool_options *options) {
  uint64_t count = options->count ? options->count : 1;
  atomic_fetch_add(&node->state->gpu[gpu].faults.ecc, count);
  atomic_fetch_add(&node->state->gpu[gpu].faults.ecc_ever, count);
  happen(node, gpu, DOUBLE_BIT_ECC, 0);
  xid(node, gpu, XID_DOUBLE_BIT_ECC);
  return 0;
}

static int inject_throttle(struct node *node, int gpu, const struct tool_options *options) {
  uint32_t reasons = options->off ? 0 : HW_SLOWDOWN | HW_THERMAL_SLOWDOWN;
  atomic_store(&node->state->gpu[gpu].faults.throttled, reasons);
  happen(node, gpu, CLOCK, 0);
  return 0;
}

static int inject_lost(struct node *node, int gpu, const struct tool_options *options) {
  (void)options;
  xid(node, gpu, XID_FALLEN_OFF_BUS); /* first: who waits for it shall see it */
  atomic_store(&node->state->gpu[gpu].faults.lost, 1);
  return 0;
}

/* Without --count until --off. */
static int inject_oom(struct node *node, int gpu, const struct tool_options *options) {
  uint64_t count = options->count ? options->count : UINT64_MAX;
  atomic_store(&node->state->gpu[gpu].faults.oom, options->off ? 0 : count);
  return 0;
}

static int inject_slow(struct node *node, int gpu, const struct tool_options *options) {
  if (options->us == 0 && !options->off) {
    fprintf(stderr, "aliquot-sim: inject slow needs --us with a number from 1 to 10000000, or --off\n");
    return 2;
  }
  atomic_store(&node->state->gpu[gpu].faults.slow_us, options->off ? 0 : (uint32_t)options->us);
  return 0;
}

/* As a reset of the GPU does it: what ever happened stays on record. */
static int inject_recover(struct node *node, int gpu, const struct tool_options *options) {
  struct sim_faults *faults = &node->state->gpu[gpu].faults;
  (void)options;
  if (mig_reset(node, (uint32_t)gpu) != MIG_DONE) {
    fprintf(stderr, "aliquot-sim: inject recover: a reset would change the GPU's MIG mode or destroy its "
                    "instances, and the GPU is in use: end its programs first\n");
    return 1;
  }
  atomic_store(&faults->lost, 0);
  atomic_store(&faults->ecc, 0);
  atomic_store(&faults->last_xid, 0);
  atomic_store(&faults->needs_reset, 0);
  atomic_store(&faults->oom, 0);
  atomic_store(&faults->slow_us, 0);
  if (atomic_exchange(&faults->throttled, 0) != 0) {
    happen(node, gpu, CLOCK, 0);
  }
  return 0;
}

/* A process of its own that has the memory until it is killed. */
static int inject_hold(struct node *node, int gpu, const struct tool_options *options) {
  struct books books = {.node = *node};
  if (options->memory == 0) {
    fprintf(stderr, "aliquot-sim: inject hold needs --memory, such as 16Gi or 512Mi or a number of bytes\n");
    return 2;
  }
  uint64_t size = (options->memory + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
  books.node.part = tool_part(node, options->gpu_name);
  books.slot = slots_claim(&books.node, options->root);
  if (books.slot == 0) {
    fprintf(stderr, "aliquot-sim: %u programs use the node already: end some\n", SIM_SLOTS - 1);
    return 1;
  }
  bool allowed =
      books.node.part ? mig_enter(node->state, books.node.part) : mig_enter_whole(node->state, (uint32_t)gpu);
  if (!allowed) {
    fprintf(stderr, "aliquot-sim: --gpu %s is in MIG mode: give the UUID of a MIG device\n",
            options->gpu_name);
    books_leave(&books);
    return 1;
  }
  struct books_delta all = {.pages = (int64_t)size, .requested = (int64_t)options->memory};
  if (!books_change(&books, (uint32_t)gpu, all)) {
    fprintf(stderr, "aliquot-sim: --memory: the GPU has only %llu MiB left\n",
            (unsigned long long)books_free(&books, (uint32_t)gpu) >> 20);
    books_leave(&books);
    return 1;
  }
  books_set_contexts(&books, (uint32_t)gpu, 1);
  printf("process %d holds %llu MiB; end it to give them back\n", (int)getpid(),
         (unsigned long long)size >> 20);
  fflush(stdout);
  for (;;) {
    pause();
  }
}

int tool_inject(const struct tool_options *options) {
  static const struct {
    const char *name;
    int (*run)(struct node *node, int gpu, const struct tool_options *options);
  } faults[] = {{"xid", inject_xid},         {"ecc", inject_ecc},  {"throttle", inject_throttle},
                {"lost", inject_lost},       {"oom", inject_oom},  {"slow", inject_slow},
                {"recover", inject_recover}, {"hold", inject_hold}};
  struct node node;
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    if (options->what && strcmp(options->what, faults[i].name) == 0) {
      int gpu = tool_open(options, &node) ? tool_gpu(&node, options->gpu_name) : -1;
      return gpu < 0 ? 1 : faults[i].run(&node, gpu, options);
    }
  }
  fprintf(stderr, "aliquot-sim: inject %s: there are xid, ecc, throttle, lost, oom, slow, recover, hold\n",
          options->what ? options->what : "");
  return 2;
}
