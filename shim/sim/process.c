/* SPDX-License-Identifier: Apache-2.0
 *
 * Joining and leaving the node: cuInit, fork, exit.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mig.h"
#include "mps.h"
#include "sight.h"
#include "stream.h"

struct driver driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static enum { NOT_YET, READY, ENDED } phase;

/* A page that the kernel empties in the child of any fork: there the driver is gone, as with CUDA. */
static volatile uint32_t *here;

static bool in_forked_child(void) {
  return here && *here == 0;
}

/* While the driver is held, all calls wait but those that may end that. */
static bool held;
static pthread_cond_t no_longer_held = PTHREAD_COND_INITIALIZER;

/* `aliquot-sim inject slow`: the slowest GPU of the process sets the pace. Without the lock. */
static void be_slow(void) {
  uint32_t us = 0;
  for (unsigned i = 0; i < driver.devices; i++) {
    const struct sim_faults *faults = &driver.books.node.state->gpu[driver.gpu[i]].faults;
    uint32_t other = atomic_load_explicit(&faults->slow_us, memory_order_relaxed);
    us = other > us ? other : us;
  }
  if (us > 0) {
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000}, NULL);
  }
}

static CUresult enter(bool although_held) {
  if (in_forked_child()) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  if (work_in_callback()) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (phase == READY) {
    be_slow();
  }
  pthread_mutex_lock(&lock);
  while (held && !although_held) {
    pthread_cond_wait(&no_longer_held, &lock);
  }
  if (phase == READY) {
    return CUDA_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return phase == ENDED ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult driver_enter(void) {
  return enter(false);
}

CUresult driver_enter_held(void) {
  return enter(true);
}

void driver_hold(bool hold) {
  held = hold;
  pthread_cond_broadcast(&no_longer_held);
}

void driver_unlock(void) {
  pthread_mutex_unlock(&lock);
}

void driver_wait(pthread_cond_t *news, uint64_t ns) {
  if (ns == 0) {
    pthread_cond_wait(news, &lock);
    return;
  }
  uint64_t until = schedule_now() + ns;
  struct timespec at = {.tv_sec = (time_t)(until / 1000000000ULL), .tv_nsec = (long)(until % 1000000000ULL)};
  pthread_cond_timedwait(news, &lock, &at);
}

/* Look-ups come before cuInit: the node's driver is read from its file then, whose descriptor stays open
 * (slots.h). */
int driver_cuda_version(void) {
  static _Atomic int known;
  int version = atomic_load_explicit(&known, memory_order_relaxed);
  if (version == 0) {
    uint32_t number = node_driver(node_root());
    version = sim_drivers[number < sim_driver_count ? number : sim_driver_count - 1].cuda;
    if (number < sim_driver_count) {
      atomic_store_explicit(&known, version, memory_order_relaxed);
    }
  }
  return version;
}

static bool mark_process(void) {
  size_t size = (size_t)sysconf(_SC_PAGESIZE);
  void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return false;
  }
  if (madvise(page, size, MADV_WIPEONFORK) != 0) {
    munmap(page, size);
    return false;
  }
  here = page;
  *here = 1;
  return true;
}

static void abandon(struct node *node) {
  munmap(node->state, sizeof *node->state);
  if (node->fd >= 0) {
    close(node->fd);
  }
}

/* The only GPU of a process that uses a MIG device, as that device. */
static struct sim_profile partition;

const struct sim_profile *driver_profile(uint32_t gpu) {
  return driver.books.node.part ? &partition : &sim_profiles[driver.books.node.state->gpu[gpu].profile];
}

uint64_t driver_capacity(uint32_t gpu) {
  return mig_memory(driver.books.node.state, gpu, driver.books.node.part);
}

bool driver_shares(uint32_t slot) {
  const struct node *node = &driver.books.node;
  return mig_same_instance(node->part, atomic_load(&node->state->slot[slot].part));
}

/* Use the MIG device, unless it is gone since we saw it. */
static CUresult join_part(const struct node *node) {
  static char product[2 * SIM_NAME];
  char name[SIM_NAME];
  struct mig_compute compute;
  if (!mig_enter(node->state, node->part) || !mig_part_compute(node->state, node->part, &compute)) {
    return CUDA_ERROR_NO_DEVICE;
  }
  partition = sim_profiles[node->state->gpu[mig_part_gpu(node->part)].profile];
  const struct mig_kind *kind = &mig_kinds[compute.in.kind];
  mig_name(partition.mig, compute, name);
  snprintf(product, sizeof product, "%.*s MIG %s", SIM_NAME - 8, partition.product, name);
  partition.product = product;
  partition.multiprocessors = mig_multiprocessors(partition.mig, compute);
  partition.bus_width_bits = partition.bus_width_bits / 8 * kind->memory_slices;
  partition.l2_bytes = partition.l2_bytes / 8 * kind->memory_slices;
  return CUDA_SUCCESS;
}

static CUresult join(void) {
  const char *root = node_root();
  struct node node;
  enum node_error error = node_open(&node, root);
  if (error != NODE_OK) {
    return error == NODE_OTHER_LAYOUT ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH : CUDA_ERROR_NO_DEVICE;
  }
  struct sight sight = sight_take(node.state, root, getenv("CUDA_VISIBLE_DEVICES"));
  memcpy(driver.gpu, sight.gpus, sizeof driver.gpu);
  driver.devices = sight.count;
  node.part = sight.part;
  if (driver.devices == 0) {
    abandon(&node);
    return CUDA_ERROR_NO_DEVICE;
  }
  uint32_t slot = slots_claim(&node, root);
  if (slot == 0 || !mark_process()) {
    abandon(&node); /* the slot, if any, is without its locks now: anybody may reap it */
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  driver.books = (struct books){.node = node, .slot = slot};
  CUresult result = node.part ? join_part(&driver.books.node) : (CUresult)mps_join(&driver.books.node, slot);
  if (result != CUDA_SUCCESS) {
    books_leave(&driver.books);
    return result;
  }
  phase = READY;
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int Flags) {
  if (Flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (in_forked_child()) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  pthread_mutex_lock(&lock);
  CUresult result = CUDA_SUCCESS;
  if (phase == ENDED) {
    result = CUDA_ERROR_DEINITIALIZED;
  } else if (phase == NOT_YET) {
    result = join();
  }
  return driver_leave(result);
}

__attribute__((destructor)) static void at_exit(void) {
  if (!here || in_forked_child()) {
    return;
  }
  if (pthread_mutex_trylock(&lock) != 0) {
    return; /* exit() out of a signal handler, perhaps: who finds us dead tidies up */
  }
  phase = ENDED;
  books_leave(&driver.books);
  pthread_mutex_unlock(&lock);
}
