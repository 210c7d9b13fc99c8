/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints the numbers of the system calls that a program makes, one a line.
 *
 *   trace PROGRAM ARG...
 */
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int status;
  if (argc < 2)
    return 2;
  pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execv(argv[1], argv + 1);
    _exit(127);
  }
  waitpid(child, &status, 0);
  for (int entering = 1; WIFSTOPPED(status); entering = !entering) {
    struct user_regs_struct registers;
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
      break;
    if (entering && ptrace(PTRACE_GETREGS, child, 0, &registers) == 0)
      printf("%llu\n", registers.orig_rax);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
