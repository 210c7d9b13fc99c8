/* SPDX-License-Identifier: Apache-2.0
 *
 * Children by other ways than fork(), at every stage of a program's use of CUDA.
 *
 *   children WAY     vfork, clone, spawn or thread: prints what an allocation of half the share answers
 *                    after each stage: before cuInit, after it, with a context, with memory
 *
 * vfork and spawn start /bin/true, clone runs without any handler of libc's and only leaves, thread is a
 * second thread that forks while the first one allocates and frees.
 */
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_api.h"

enum { STAGES = 4, FORKS = 50 };

static const char *way;
static volatile int forking;

static int ended(pid_t child) {
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int by_vfork(void) {
  pid_t child = vfork();
  if (child == 0) {
    execl("/bin/true", "true", (char *)NULL);
    _exit(127);
  }
  return ended(child);
}

static int by_spawn(void) {
  pid_t child = -1;
  char *arguments[] = {"true", NULL};
  char *environment[] = {NULL};
  return posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environment) == 0 ? ended(child) : -1;
}

static int by_clone(void) {
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0)
    syscall(SYS_exit_group, 0);
  return ended(child);
}

static void *fork_on(void *unused) {
  (void)unused;
  int failed = 0;
  for (int i = 0; i < FORKS; i++) {
    pid_t child = fork();
    if (child == 0)
      _exit(0);
    failed |= ended(child);
  }
  forking = 0;
  return (void *)(long)failed;
}

/* Allocates and frees as long as the other thread forks. */
static int by_thread(void) {
  pthread_t thread;
  void *failed = NULL;
  forking = 1;
  if (pthread_create(&thread, NULL, fork_on, NULL) != 0)
    return -1;
  while (forking) {
    CUdeviceptr pointer;
    if (cuMemAlloc_v2(&pointer, 4096) == CUDA_SUCCESS)
      cuMemFree_v2(pointer);
  }
  pthread_join(thread, &failed);
  return failed ? -1 : 0;
}

static int make_child(void) {
  if (!strcmp(way, "vfork"))
    return by_vfork();
  if (!strcmp(way, "spawn"))
    return by_spawn();
  return !strcmp(way, "clone") ? by_clone() : by_thread();
}

int main(int argc, char **argv) {
  CUcontext context;
  CUdeviceptr pointer = 0;
  size_t free = 0;
  size_t total = 0;
  way = argc > 1 ? argv[1] : "vfork";
  for (int stage = 0; stage < STAGES; stage++) {
    if (stage == 1)
      cuInit(0);
    if (stage == 2)
      cuCtxCreate_v2(&context, 0, 0);
    if (stage == 3 && cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS)
      cuMemAlloc_v2(&pointer, total / 2);
    if (make_child() != 0)
      return 1;
    CUdeviceptr more = 0;
    CUresult result = cuMemAlloc_v2(&more, total ? total / 2 : 4096);
    printf("%d ", result);
    if (result == CUDA_SUCCESS)
      cuMemFree_v2(more);
  }
  CUdeviceptr last = 0;
  printf("%d\n", cuMemAlloc_v2(&last, total / 2 + 1));
  return 0;
}
