/* SPDX-License-Identifier: Apache-2.0
 *
 * Making a node, and describing its GPUs to container runtimes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mig.h"
#include "profiles.h"
#include "schedule.h"
#include "shared.h"
#include "tool.h"
#include "uuid.h"

#define UUID_RANDOM 4 /* version */

static int failed(const char *what, const char *path) {
  fprintf(stderr, "aliquot-sim: cannot %s %s: %s\n", what, path, strerror(errno));
  return 1;
}

static void describe(struct sim_state *state, const struct tool_options *options) {
  state->magic = SIM_MAGIC;
  state->layout = SIM_LAYOUT;
  state->size = sizeof *state;
  state->gpus = options->gpus;
  state->driver = options->driver;
  atomic_store(&state->nvml_step, 1);
  if (options->fabric) {
    uuid_make(options->fabric, 0, UUID_RANDOM, state->fabric_uuid);
    state->in_fabric = 1;
    state->fabric_clique = options->clique;
  }
  snprintf(state->node, sizeof state->node, "%s", options->node);
  for (unsigned i = 0; i < options->gpus; i++) {
    struct sim_gpu *gpu = &state->gpu[i];
    uint64_t usual = (uint64_t)sim_profiles[options->profile[i]].context_mib << 20;
    uuid_make(options->node, i, UUID_RANDOM, gpu->uuid);
    gpu->profile = options->profile[i];
    gpu->pci_bus = 0x0f + 0x10 * i;
    gpu->numa_node = (int32_t)(2 * i / options->gpus);
    gpu->minor = i;
    atomic_store(&state->schedule[i].slice_ns, SCHEDULE_SLICE_NS);
    gpu->context_bytes = options->context_bytes ? options->context_bytes : usual;
  }
}

static bool same_node(const struct sim_state *one, const struct sim_state *other) {
  bool same = one->gpus == other->gpus && strcmp(one->node, other->node) == 0 &&
              one->driver == other->driver && one->in_fabric == other->in_fabric &&
              one->fabric_clique == other->fabric_clique &&
              memcmp(one->fabric_uuid, other->fabric_uuid, sizeof one->fabric_uuid) == 0;
  for (unsigned i = 0; same && i < one->gpus; i++) {
    const struct sim_gpu *a = &one->gpu[i];
    const struct sim_gpu *b = &other->gpu[i];
    same =
        a->profile == b->profile && a->context_bytes == b->context_bytes && memcmp(a->uuid, b->uuid, 16) == 0;
  }
  return same;
}

static int make_folder(const char *path) {
  char partial[4096];
  snprintf(partial, sizeof partial, "%s", path);
  for (char *slash = strchr(partial + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(partial, 0755);
    *slash = '/';
  }
  return mkdir(partial, 0755) == 0 || errno == EEXIST ? 0 : failed("make the folder", partial);
}

/* Write the state under a temporary name, all of its memory there (no SIGBUS later), open to any user. */
static int write_state(const struct tool_options *options, const char *path, struct sim_state **map) {
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return failed("make", path);
  }
  errno = posix_fallocate(fd, 0, sizeof **map);
  if (errno != 0 || fchmod(fd, 0666) != 0) {
    close(fd);
    return failed("write", path);
  }
  *map = mmap(NULL, sizeof **map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (*map == MAP_FAILED) {
    return failed("map", path);
  }
  describe(*map, options);
  return 0;
}

static int make_markers(const struct tool_options *options, const struct sim_state *state) {
  char path[4096];
  for (unsigned gpu = 0; gpu < state->gpus; gpu++) {
    char uuid[SIM_UUID_TEXT];
    node_uuid_text(&state->gpu[gpu], uuid);
    snprintf(path, sizeof path, "%s/dev/%s", options->root, uuid);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
    if (fd < 0) {
      return failed("make", path);
    }
    close(fd);
  }
  return 0;
}

/* Where exported memory keeps its locks; it has no contents. */
static int make_shared(const struct tool_options *options) {
  char path[4096];
  snprintf(path, sizeof path, "%s/" SIM_SHARED_FILE, options->root);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0 || fchmod(fd, 0666) != 0) {
    return failed("make", path);
  }
  close(fd);
  return 0;
}

int tool_init(const struct tool_options *options) {
  char folder[4096];
  char fresh[4096];
  char path[4096];
  struct sim_state *wanted;
  struct node node;
  if (options->gpus == 0 || strlen(options->node) >= SIM_NAME) {
    fprintf(stderr,
            "aliquot-sim: init needs --gpu PROFILE[:COUNT], and a node name of less than %u characters\n",
            SIM_NAME);
    return 2;
  }
  snprintf(folder, sizeof folder, "%s/dev", options->root);
  snprintf(fresh, sizeof fresh, "%s/.state.%d", options->root, (int)getpid());
  snprintf(path, sizeof path, "%s/state", options->root);
  unlink(fresh);
  if (make_folder(folder) != 0 || write_state(options, fresh, &wanted) != 0) {
    unlink(fresh);
    return 1;
  }
  /* link() is atomic and never replaces a state that processes may have mapped. */
  int linked = link(fresh, path) == 0 ? 0 : errno;
  unlink(fresh);
  if (linked != 0 && linked != EEXIST) {
    errno = linked;
    return failed("make", path);
  }
  if (!tool_open(options, &node)) {
    return 1;
  }
  if (!same_node(node.state, wanted)) {
    fprintf(stderr, "aliquot-sim: %s is another node (%s, %u GPUs): end its programs and remove it first\n",
            path, node.state->node, node.state->gpus);
    return 1;
  }
  return make_shared(options) ? 1 : make_markers(options, node.state);
}

static void print_mount(const char *host, const char *file, const char *container, bool writable, bool last) {
  printf("          {\"hostPath\": \"%s%s%s\", \"containerPath\": \"%s\", \"options\": [\"%s\", \"nosuid\", "
         "\"nodev\", \"bind\"]}%s\n",
         host, *file ? "/" : "", file, container, writable ? "rw" : "ro", last ? "" : ",");
}

static const char *const library_folders[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib64"};
static const char *const library_names[] = {"libcuda.so.1", "libnvidia-ml.so.1"};

/* A GPU, or a MIG device of it, which has a marker more: what it is made of does not matter. */
static void print_device(const struct tool_options *options, const struct sim_gpu *gpu, const char *part,
                         bool first) {
  char uuid[SIM_UUID_TEXT];
  char host[4096];
  char container[128];
  node_uuid_text(gpu, uuid);
  printf("%s    {\"name\": \"%s\", \"containerEdits\": {\"mounts\": [\n", first ? "" : ",\n",
         part ? part : uuid);
  snprintf(host, sizeof host, "%s/dev", options->root);
  snprintf(container, sizeof container, "%s/dev/%s", SIM_ROOT_DEFAULT, uuid);
  print_mount(host, uuid, container, false, !part);
  if (part) {
    snprintf(container, sizeof container, "%s/dev/%s", SIM_ROOT_DEFAULT, part);
    print_mount(host, uuid, container, false, true);
  }
  printf("    ]}}");
}

static void print_devices(const struct tool_options *options, const struct sim_state *state) {
  for (unsigned gpu = 0; gpu < state->gpus; gpu++) {
    struct mig_compute computes[SIM_SLICES];
    unsigned count = mig_computes(mig_word(state, gpu), computes);
    print_device(options, &state->gpu[gpu], NULL, gpu == 0);
    for (unsigned i = 0; i < count; i++) {
      char uuid[SIM_UUID_TEXT];
      mig_uuid_text(&state->gpu[gpu], computes[i], uuid);
      print_device(options, &state->gpu[gpu], uuid, false);
    }
  }
  printf("\n");
}

int tool_cdi(const struct tool_options *options) {
  struct node node;
  char container[128];
  if (!options->lib_dir || options->lib_dir[0] != '/') {
    fprintf(stderr,
            "aliquot-sim: cdi needs --lib-dir with the absolute folder of the libraries on the host\n");
    return 2;
  }
  if (!tool_open(options, &node)) {
    return 1;
  }
  printf("{\n  \"cdiVersion\": \"0.5.0\",\n  \"kind\": \"%s\",\n", options->kind);
  printf("  \"containerEdits\": {\"mounts\": [\n");
  for (size_t folder = 0; folder < sizeof library_folders / sizeof *library_folders; folder++) {
    for (size_t name = 0; name < sizeof library_names / sizeof *library_names; name++) {
      snprintf(container, sizeof container, "%s/%s", library_folders[folder], library_names[name]);
      print_mount(options->lib_dir, library_names[name], container, false, false);
    }
  }
  if (snprintf(container, sizeof container, "%.100s/aliquot-smi", options->lib_dir) > 0 &&
      access(container, X_OK) == 0) {
    print_mount(options->lib_dir, "aliquot-smi", "/usr/bin/aliquot-smi", false, false);
  }
  print_mount(options->root, SIM_SHARED_FILE, SIM_ROOT_DEFAULT "/" SIM_SHARED_FILE, true, false);
  print_mount(options->root, "state", SIM_ROOT_DEFAULT "/state", true, true);
  printf("  ]},\n  \"devices\": [\n");
  print_devices(options, node.state);
  printf("  ]\n}\n");
  return 0;
}
