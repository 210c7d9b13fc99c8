/* SPDX-License-Identifier: Apache-2.0
 *
 * nvidia-cuda-mps-control, simulated: the daemon (-d, or -f in the foreground; -M for clients of all users),
 * and the program that reads commands and passes them on.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "mps_control.h"

#define LOOK_MS     100
#define PATIENCE_MS 1000
#define ANSWER      4096

void mps_log(struct mps_daemon *daemon, const char *format, ...) {
  char when[32];
  time_t now = time(NULL);
  va_list arguments;
  strftime(when, sizeof when, "%F %T", gmtime(&now));
  fprintf(daemon->log, "[%s Control %d] ", when, (int)getpid());
  va_start(arguments, format);
  vfprintf(daemon->log, format, arguments);
  va_end(arguments);
  fputc('\n', daemon->log);
  fflush(daemon->log);
}

static const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value && *value ? value : otherwise;
}

static int failed(const char *what, const char *path) {
  fprintf(stderr, "nvidia-cuda-mps-control: cannot %s %s: %m\n", what, path);
  return 1;
}

static int listening(const char *directory) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s/control", directory);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  unlink(address.sun_path); /* nobody answers there: that was tried */
  if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
      chmod(address.sun_path, 0666) != 0 || listen(fd, 128) != 0) {
    return -1;
  }
  return fd;
}

static bool take_line(int fd, char *line, size_t size) {
  struct pollfd ready = {.fd = fd, .events = POLLIN};
  size_t got = 0;
  while (got < size - 1 && poll(&ready, 1, PATIENCE_MS) > 0) {
    ssize_t more = recv(fd, line + got, size - 1 - got, 0);
    if (more <= 0) {
      return false;
    }
    got += (size_t)more;
    if (memchr(line, '\n', got)) {
      line[got] = '\0';
      return true;
    }
  }
  return false;
}

static void serve(struct mps_daemon *daemon, int listener) {
  char line[MPS_LINE];
  char answer[ANSWER];
  while (!daemon->quitting) {
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    bool asked = poll(&ready, 1, LOOK_MS) > 0;
    mps_server_look(daemon);
    int fd = asked ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (fd < 0) {
      continue;
    }
    if (take_line(fd, line, sizeof line)) {
      mps_command(daemon, line, answer, sizeof answer - 1);
      strcat(answer, "\n");
      send(fd, answer, strlen(answer), MSG_NOSIGNAL);
    }
    close(fd);
  }
}

/* Into the background, away from the terminal and from whoever waits for our output. */
static void leave(void) {
  if (fork() > 0) {
    _exit(0);
  }
  setsid();
  if (fork() > 0) {
    _exit(0);
  }
  int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd <= 2 && null >= 0; fd++) {
    dup2(null, fd);
  }
}

static int run_daemon(struct mps_daemon *daemon, bool background) {
  char path[4096];
  int other = mps_connect(daemon->pipe_directory);
  if (other >= 0) {
    close(other);
    fprintf(stderr, "An instance of this daemon is already running\n");
    return 1;
  }
  if (node_open(&daemon->node, node_root()) != NODE_OK) {
    return failed("find a simulated node in", node_root());
  }
  mkdir(daemon->pipe_directory, 0755);
  mkdir(daemon->log_directory, 0755);
  snprintf(path, sizeof path, "%s/control.log", daemon->log_directory);
  daemon->log = fopen(path, "ae");
  if (!daemon->log) {
    return failed("write", path);
  }
  int listener = listening(daemon->pipe_directory);
  if (listener < 0) {
    return failed("listen in", daemon->pipe_directory);
  }
  if (background) {
    leave();
  }
  signal(SIGPIPE, SIG_IGN);
  snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", daemon->pipe_directory);
  FILE *pid = fopen(path, "we");
  if (pid) {
    fprintf(pid, "%d\n", (int)getpid());
    fclose(pid);
  }
  mps_log(daemon, "Starting control daemon");
  serve(daemon, listener);
  mps_log(daemon, "Exit");
  unlink(path);
  snprintf(path, sizeof path, "%s/control", daemon->pipe_directory);
  unlink(path);
  return 0;
}

static int run_commands(const char *directory) {
  char line[MPS_LINE];
  char answer[ANSWER];
  while (fgets(line, sizeof line - 1, stdin)) {
    if (line[strspn(line, " \n")] == '\0') {
      continue;
    }
    if (!strchr(line, '\n')) {
      strcat(line, "\n");
    }
    int fd = mps_connect(directory);
    if (fd < 0) {
      fprintf(stderr, "Cannot find MPS control daemon process\n");
      return 1;
    }
    bool told = mps_ask(fd, line, answer, sizeof answer);
    close(fd);
    if (!told) {
      fprintf(stderr, "The MPS control daemon does not answer\n");
      return 1;
    }
    if (*answer) {
      printf("%s\n", answer);
    }
    fflush(stdout);
  }
  return 0;
}

int main(int argc, char **argv) {
  struct mps_daemon daemon = {
      .pipe_directory = setting(MPS_PIPE_ENV, MPS_PIPE_DEFAULT),
      .log_directory = setting(MPS_LOG_ENV, MPS_LOG_DEFAULT),
      .percent = 100,
  };
  bool begins = false;
  bool background = true;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "-d") == 0 || strcmp(argv[i], "-f") == 0) {
      begins = true;
      background = argv[i][1] == 'd';
    } else if (strcmp(argv[i], "-M") == 0 || strcmp(argv[i], "-multiuser-server") == 0) {
      daemon.any_user = true;
    } else {
      fprintf(stderr, "usage: nvidia-cuda-mps-control [-d|-f] [-M]   (simulated)\n");
      return 2;
    }
  }
  return begins ? run_daemon(&daemon, background) : run_commands(daemon.pipe_directory);
}
