/* SPDX-License-Identifier: Apache-2.0
 *
 * Stops a process between any two instructions of an operation. While it is
 * stopped, this process works on the same GPU in the same group. Whatever the
 * moment, the GPU must have what it should have.
 *
 *   steps OPERATION kill FIRST STRIDE    each moment with a process of its own, which is killed there
 *   steps OPERATION walk                 one process, which is stopped at every moment and goes on
 *   steps sweep overtake FIRST STRIDE    it is freeing the memory of a dead process when others do it first,
 * and a new process takes the dead one's place
 *
 * Operations: alloc, free; share, unshare (memory that can be exported, and thus has a slot of its own).
 * Prints how many instructions the operation has.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *address, size_t size);
int cuMemFree_v2(uint64_t address);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuMemCreate(uint64_t *handle, size_t size, const void *prop, unsigned long long flags);
int cuMemRelease(uint64_t handle);

#define SIZE (100UL << 20)

static void check(int holds, const char *what, unsigned long moment) {
  if (!holds) {
    fprintf(stderr, "steps: moment %lu: %s\n", moment, what);
    exit(1);
  }
}

static void start(void) {
  void *context;
  check(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0,
        "start", 0);
}

static size_t available(void) {
  size_t free_bytes = 0;
  size_t total = 0;
  cuMemGetInfo_v2(&free_bytes, &total);
  return free_bytes;
}

/* Device memory of GPU 0 that can be exported by descriptor. */
static const struct {
  int type, handles, location_type, location_id;
  void *windows;
  unsigned char flags[8];
} exportable = {.type = 1, .handles = 1, .location_type = 1};

static int is(const char *operation, const char *name) {
  return strcmp(operation, name) == 0;
}

static int take(const char *operation, uint64_t *what) {
  return is(operation, "share") || is(operation, "unshare") ? cuMemCreate(what, SIZE, &exportable, 0)
                                                            : cuMemAlloc_v2(what, SIZE);
}

static int give(const char *operation, uint64_t what) {
  return is(operation, "share") || is(operation, "unshare") ? cuMemRelease(what) : cuMemFree_v2(what);
}

/* The process under test: between its two stops lies exactly one operation. */
static void victim(const char *operation) {
  uint64_t what;
  int code = 0;
  ptrace(PTRACE_TRACEME, 0, NULL, NULL);
  start();
  check(take(operation, &what) == 0, "first allocation", 0);
  if (!is(operation, "free") && !is(operation, "unshare")) {
    give(operation, what);
  }
  raise(SIGSTOP);
  if (is(operation, "sweep")) {
    available();
  } else if (is(operation, "free") || is(operation, "unshare")) {
    code = give(operation, what);
  } else {
    code = take(operation, &what);
  }
  raise(SIGSTOP);
  _exit(code);
}

/* A process that stands before its operation. */
static pid_t begin(const char *operation) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "steps", operation, "victim", (char *)NULL);
    _exit(127);
  }
  waitpid(child, &status, 0);
  while (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP) { /* the exec */
    ptrace(PTRACE_CONT, child, NULL, NULL);
    waitpid(child, &status, 0);
  }
  check(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "the other process did not start", 0);
  return child;
}

/* One instruction. False: the child has come to its second stop. */
static int step(pid_t child) {
  int status;
  ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
  waitpid(child, &status, 0);
  return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

static void work(unsigned long moment) {
  uint64_t address;
  check(cuMemAlloc_v2(&address, SIZE / 2) == 0, "allocation beside the stopped process", moment);
  check(cuMemFree_v2(address) == 0, "free beside the stopped process", moment);
}

static void finish(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

/* Every other time this process is the last writer of all meters when the other one dies. */
static unsigned long kill_at_each(const char *operation, unsigned long first, unsigned long stride) {
  size_t before = available();
  for (unsigned long moment = first;; moment += stride) {
    pid_t child = begin(operation);
    unsigned long done = 0;
    while (done < moment && step(child)) {
      done++;
    }
    if (moment / stride % 2) {
      work(moment);
    }
    finish(child);
    check(available() == before, "the dead still hold memory, or it was given back twice", moment);
    if (done < moment) {
      return done;
    }
  }
}

static unsigned long overtake_at_each(unsigned long first, unsigned long stride) {
  size_t alone = available();
  for (unsigned long moment = first;; moment += stride) {
    int status;
    pid_t sweeper = begin("sweep");
    finish(begin("free")); /* a dead process that holds memory */
    unsigned long done = 0;
    while (done < moment && step(sweeper)) {
      done++;
    }
    available();
    pid_t heir = begin("free"); /* holds as much, in the same slot */
    size_t right = available();
    if (done == moment) {
      ptrace(PTRACE_CONT, sweeper, NULL, NULL);
      waitpid(sweeper, &status, 0);
      check(WIFSTOPPED(status), "the sweeper did not come to its end", moment);
    }
    check(available() == right, "a late sweeper took memory from the living", moment);
    finish(sweeper);
    finish(heir);
    check(available() == alone, "memory is lost", moment);
    if (done < moment) {
      return done;
    }
  }
}

static unsigned long walk(const char *operation) {
  int status;
  size_t alone = available();
  pid_t child = begin(operation);
  size_t before = available();
  unsigned long moment = 0;
  unsigned long next = 0;
  size_t after;
  do {
    /* At ever longer intervals: who always loses the race to change a meter never gets on. */
    if (moment == next) {
      work(moment);
      next += 37 + next / 2;
    }
    moment++;
    after = available();
    check(after == before || after == before - SIZE || after == before + SIZE, "half an operation", moment);
  } while (step(child));
  check(after != before, "nothing happened", moment);
  do {
    ptrace(PTRACE_CONT, child, NULL, NULL);
    waitpid(child, &status, 0);
  } while (WIFSTOPPED(status));
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process failed", moment);
  check(available() == alone, "the ended process still holds memory", moment);
  return moment;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[2], "victim") == 0) {
    victim(argv[1]);
  }
  if (argc != 3 && argc != 5) {
    return 2;
  }
  unsigned long first = argc == 5 ? strtoul(argv[3], NULL, 10) : 0;
  unsigned long stride = argc == 5 ? strtoul(argv[4], NULL, 10) : 1;
  start();
  if (strcmp(argv[2], "walk") == 0) {
    printf("%lu\n", walk(argv[1]));
  } else if (strcmp(argv[2], "kill") == 0) {
    printf("%lu\n", kill_at_each(argv[1], first, stride));
  } else {
    printf("%lu\n", overtake_at_each(first, stride));
  }
  return 0;
}
