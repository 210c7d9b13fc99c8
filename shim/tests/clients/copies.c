/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens several copies of the driver one after another and prints what cuInit of each answers.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "driver_api.h"

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    void *copy = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    __typeof__(cuInit) *init = copy ? (__typeof__(cuInit) *)dlsym(copy, "cuInit") : NULL;
    printf("%d\n", init ? init(0) : -1);
  }
  return 0;
}
