/* SPDX-License-Identifier: Apache-2.0
 *
 * Many processes of one program, which all initialise CUDA and stay.
 *
 *   crowd N       prints how many got 0 and how many 800 from cuInit, then waits for the end of stdin
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_api.h"

static void member(int answers, int end) {
  char byte;
  CUresult result = cuInit(0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (write(answers, &result, sizeof(result)) == sizeof(result) && read(end, &byte, 1) == 0)
    _exit(0);
  _exit(1);
}

int main(int argc, char **argv) {
  int answers[2];
  int end[2];
  int count = argc > 1 ? atoi(argv[1]) : 0;
  int good = 0;
  int refused = 0;
  if (pipe(answers) != 0 || pipe(end) != 0)
    return 1;
  for (int i = 0; i < count; i++) {
    pid_t child = fork();
    if (child == 0) {
      close(end[1]);
      member(answers[1], end[0]);
    }
    if (child < 0)
      return 1;
  }
  for (int i = 0; i < count; i++) {
    CUresult result;
    if (read(answers[0], &result, sizeof(result)) != sizeof(result))
      return 1;
    good += result == CUDA_SUCCESS;
    refused += result == CUDA_ERROR_NOT_PERMITTED;
  }
  printf("%d %d\n", good, refused);
  fflush(stdout);
  while (getchar() != EOF)
    ;
  close(end[1]);
  while (wait(NULL) > 0)
    ;
  return 0;
}
