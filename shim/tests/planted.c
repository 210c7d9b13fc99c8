/* SPDX-License-Identifier: Apache-2.0
 *
 * A fault to be linked into a shim that a sanitizer watches: if it is not reported, nothing is.
 *   PLANT_overflow    a read behind the end of memory
 *   PLANT_undefined   a shift by more bits than there are
 *   PLANT_race        two threads that write without a lock
 */
#include <pthread.h>
#include <stdlib.h>

static volatile int sink;

#ifdef PLANT_overflow
static void go_wrong(void) {
  char *volatile bytes = calloc(1, 32); /* of unknown size to the compiler */
  sink = bytes[32];
  free(bytes);
}
#endif

#ifdef PLANT_undefined
static void go_wrong(void) {
  volatile int bits = 40;
  sink = 1 << bits;
}
#endif

#ifdef PLANT_race
static int shared;

static void *count(void *unused) {
  (void)unused;
  for (int i = 0; i < 1000; i++)
    shared++;
  return NULL;
}

static void go_wrong(void) {
  pthread_t other;
  if (pthread_create(&other, NULL, count, NULL) != 0)
    return;
  count(NULL);
  pthread_join(other, NULL);
  sink = shared;
}
#endif

__attribute__((constructor)) static void plant(void) {
  go_wrong();
}
