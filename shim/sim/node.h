/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated node: its folder, its state file, and which of its GPUs this
 * process may see.
 */
#ifndef SIM_NODE_H
#define SIM_NODE_H

#include <stdbool.h>
#include <stddef.h>

#include "layout.h"
#include "uuid.h"

#define SIM_ROOT_ENV     "ALIQUOT_SIM_ROOT"
#define SIM_ROOT_DEFAULT "/run/aliquot-sim"
#define SIM_BUS_TEXT     17 /* "00000000:17:00.0" + terminator */

enum node_error { NODE_OK, NODE_ABSENT, NODE_OTHER_LAYOUT, NODE_NO_MEMORY };

/* Which program run a process is: a pid is used again, and an exec keeps it. */
struct identity {
  uint64_t pid;
  uint64_t pidns_inode;
  uint64_t exec_id;
};

/* One mapping of a state file, made by node_open. Never unmapped: a library lives as long as its process. */
struct node {
  struct sim_state *state;
  int fd;
  char *root;
  struct identity self;
  uint32_t part; /* the MIG device that this process uses: mig.h; 0 = none */
};

/* Folder of the node: from the environment, else the default. */
const char *node_root(void);

/* Map the state under `root`. The descriptor stays open on success; see slots.h before closing it. */
enum node_error node_open(struct node *node, const char *root);

/* The driver of the node under `root`, an index; UINT32_MAX if there is no node. Leaves a descriptor open. */
uint32_t node_driver(const char *root);

/* Indices of the GPUs whose marker exists under `root`, ascending; returns how many. */
unsigned node_present(const struct sim_state *state, const char *root, unsigned present[SIM_GPUS]);

void node_uuid_text(const struct sim_gpu *gpu, char text[SIM_UUID_TEXT]);
void node_bus_text(const struct sim_gpu *gpu, char text[SIM_BUS_TEXT]);

#endif
