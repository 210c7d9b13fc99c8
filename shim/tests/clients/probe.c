/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls driver functions on command, so that a test can drive a process step by step.
 *
 *   probe [LIBRARY...]      opens them (default: libcuda.so.1 libnvidia-ml.so.1)
 *
 * One command per line on stdin, one answer per line on stdout:
 *   SYMBOL ARG...   ARG: a number, &N (address of cell N), *N (value of cell N), =TEXT (a string)
 *                   answer: result, then CELL=VALUE for every cell that changed
 *   !COMMAND ...    see builtin()
 * All cells hold PATTERN before each call whose argument is &N, from N on: an output that was
 * not written stays as it is.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CELLS = 8192, ARGUMENTS = 8, LIBRARIES = 4, LINE = 4096 };

typedef int function(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static uint64_t cells[CELLS];
static uint64_t before[CELLS];
static void *libraries[LIBRARIES];

static void *find(const char *symbol) {
  for (int i = 0; i < LIBRARIES && libraries[i]; i++) {
    void *address = dlsym(libraries[i], symbol);
    if (address)
      return address;
  }
  return NULL;
}

static uintptr_t argument(const char *text) {
  switch (text[0]) {
  case '&':
    return (uintptr_t)&cells[strtoul(text + 1, NULL, 0) % CELLS];
  case '*':
    return cells[strtoul(text + 1, NULL, 0) % CELLS];
  case '=':
    return (uintptr_t)(text + 1);
  default:
    return strtoull(text, NULL, 0);
  }
}

static void print_changes(void) {
  for (int i = 0; i < CELLS; i++)
    if (cells[i] != before[i])
      printf(" %d=%llu", i, (unsigned long long)cells[i]);
  printf("\n");
}

static void call(void *address, char **words, int count) {
  uintptr_t a[ARGUMENTS] = {0};
  for (int i = 0; i < count && i < ARGUMENTS; i++)
    a[i] = argument(words[i]);
  memcpy(before, cells, sizeof(cells));
  errno = 0;
  int result = ((function *)address)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
  printf("%d", result);
  print_changes();
}

/* As a daemon does it: every descriptor but the three. */
static void close_descriptors(void) {
  for (int fd = 3; fd < 4096; fd++)
    close(fd);
}

/* The child answers from now on, the parent waits for it. */
static void go_on_in_child(void) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0)
    return;
  int status = 0;
  waitpid(child, &status, 0);
  printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  fflush(stdout);
}

static int descriptors(void) {
  int count = 0;
  DIR *directory = opendir("/proc/self/fd");
  while (directory && readdir(directory))
    count++;
  if (directory)
    closedir(directory);
  return count;
}

static void builtin(char **words, int count) {
  if (!strcmp(words[0], "!set") && count == 3) {
    cells[strtoul(words[1], NULL, 0) % CELLS] = strtoull(words[2], NULL, 0);
    printf("0\n");
  } else if (!strcmp(words[0], "!cell") && count == 2) {
    printf("%llu\n", (unsigned long long)cells[strtoul(words[1], NULL, 0) % CELLS]);
  } else if (!strcmp(words[0], "!symbol") && count == 2) { /* whose address a cell holds */
    Dl_info info = {0};
    dladdr((void *)(uintptr_t)cells[strtoul(words[1], NULL, 0) % CELLS], &info);
    printf("%s\n", info.dli_sname ? info.dli_sname : "nobody");
  } else if (!strcmp(words[0], "!address") && count == 2) {
    printf("%llu\n", (unsigned long long)(uintptr_t)&cells[strtoul(words[1], NULL, 0) % CELLS]);
  } else if (!strcmp(words[0], "!close")) {
    close_descriptors();
    printf("0\n");
  } else if (!strcmp(words[0], "!reuse") && count == 2) {
    printf("%d\n", dup2(open("/dev/null", O_RDONLY), atoi(words[1])));
  } else if (!strcmp(words[0], "!check") && count == 2) { /* still what !reuse opened? */
    struct stat status, null;
    int same = fstat(atoi(words[1]), &status) == 0 && stat("/dev/null", &null) == 0 &&
               status.st_rdev == null.st_rdev;
    printf("%d\n", same);
  } else if (!strcmp(words[0], "!fork")) {
    go_on_in_child();
    printf("%d\n", (int)getpid());
  } else if (!strcmp(words[0], "!pid")) {
    printf("%d\n", (int)getpid());
  } else if (!strcmp(words[0], "!descriptors")) {
    printf("%d\n", descriptors());
  } else if (!strcmp(words[0], "!exec") && count > 1) {
    execv(words[1], words + 1);
    printf("%d\n", errno);
  } else if (!strcmp(words[0], "!exit") && count == 2) {
    exit(atoi(words[1]));
  } else {
    printf("unknown\n");
  }
}

int main(int argc, char **argv) {
  char line[LINE];
  static const char *const usual[] = {"libcuda.so.1", "libnvidia-ml.so.1"};
  for (int i = 0; i < 2 && argc == 1; i++)
    libraries[i] = dlopen(usual[i], RTLD_NOW);
  for (int i = 1; i < argc && i <= LIBRARIES; i++)
    libraries[i - 1] = dlopen(argv[i], RTLD_NOW);
  for (int i = 0; i < CELLS; i++)
    cells[i] = 0xA5A5A5A5A5A5A5A5ULL;
  while (fgets(line, sizeof(line), stdin)) {
    char *words[ARGUMENTS + 2];
    int count = 0;
    for (char *word = strtok(line, " \n"); word && count < ARGUMENTS + 1; word = strtok(NULL, " \n"))
      words[count++] = word;
    words[count] = NULL;
    if (count == 0)
      continue;
    void *address = words[0][0] == '!' ? NULL : find(words[0]);
    if (words[0][0] == '!')
      builtin(words, count);
    else if (!address)
      printf("missing\n");
    else
      call(address, words + 1, count - 1);
    fflush(stdout);
  }
  return 0;
}
