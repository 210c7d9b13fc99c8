/* SPDX-License-Identifier: Apache-2.0 */
#include "node.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *node_root(void) {
  const char *root = getenv(SIM_ROOT_ENV);
  return root && *root ? root : SIM_ROOT_DEFAULT;
}

static struct identity identify(void) {
  struct stat ns;
  struct identity self = {
      .pid = (uint64_t)getpid(),
      .pidns_inode = stat("/proc/self/ns/pid", &ns) == 0 ? ns.st_ino : 0,
  };
  const void *random = (const void *)getauxval(AT_RANDOM); /* 16 bytes from the kernel, new with each exec */
  if (random) {
    memcpy(&self.exec_id, random, sizeof self.exec_id);
  }
  return self;
}

_Static_assert(offsetof(struct sim_state, driver) == 24 + SIM_NAME, "node_driver reads the same head");

static bool is_state(const struct sim_state *state) {
  return state->magic == SIM_MAGIC && state->layout == SIM_LAYOUT && state->size == sizeof *state &&
         state->gpus <= SIM_GPUS;
}

enum node_error node_open(struct node *node, const char *root) {
  char path[4096];
  struct stat file;
  if ((size_t)snprintf(path, sizeof path, "%s/state", root) >= sizeof path) {
    return NODE_ABSENT;
  }
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return NODE_ABSENT;
  }
  if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != sizeof(struct sim_state)) {
    close(fd);
    return NODE_OTHER_LAYOUT;
  }
  void *map = mmap(NULL, sizeof(struct sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) {
    close(fd);
    return NODE_NO_MEMORY;
  }
  char *copy = is_state(map) ? strdup(root) : NULL;
  if (!copy) {
    enum node_error error = is_state(map) ? NODE_NO_MEMORY : NODE_OTHER_LAYOUT;
    munmap(map, sizeof(struct sim_state));
    close(fd);
    return error;
  }
  *node = (struct node){.state = map, .fd = fd, .root = copy, .self = identify()};
  return NODE_OK;
}

uint32_t node_driver(const char *root) {
  static _Atomic int kept = -1;
  char path[4096];
  struct {
    uint64_t magic;
    uint32_t layout;
    uint32_t gpus;
    uint64_t size;
    char node[SIM_NAME];
    uint32_t driver;
  } head;
  size_t size = offsetof(struct sim_state, driver) + sizeof head.driver;
  int fd = atomic_load(&kept);
  if (fd < 0 && (size_t)snprintf(path, sizeof path, "%s/state", root) < sizeof path) {
    fd = open(path, O_RDONLY | O_CLOEXEC);
    atomic_store(&kept, fd);
  }
  bool read = fd >= 0 && pread(fd, &head, size, 0) == (ssize_t)size;
  return read && head.magic == SIM_MAGIC && head.layout == SIM_LAYOUT ? head.driver : UINT32_MAX;
}

void node_uuid_text(const struct sim_gpu *gpu, char text[SIM_UUID_TEXT]) {
  uuid_text("GPU-", gpu->uuid, text);
}

void node_bus_text(const struct sim_gpu *gpu, char text[SIM_BUS_TEXT]) {
  snprintf(text, SIM_BUS_TEXT, "00000000:%02X:00.0", gpu->pci_bus & 0xff);
}

unsigned node_present(const struct sim_state *state, const char *root, unsigned present[SIM_GPUS]) {
  unsigned count = 0;
  for (unsigned gpu = 0; gpu < state->gpus; gpu++) {
    char uuid[SIM_UUID_TEXT];
    char path[4096];
    node_uuid_text(&state->gpu[gpu], uuid);
    int length = snprintf(path, sizeof path, "%s/dev/%s", root, uuid);
    if (length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0) {
      present[count++] = gpu;
    }
  }
  return count;
}
