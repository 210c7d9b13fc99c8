/* SPDX-License-Identifier: Apache-2.0
 *
 * Forced in before the shim's sources: each access to shared memory and each system call becomes a step,
 * at which protocol.c may let another process run or end this one.
 */
#ifndef ALIQUOT_MODEL_ATOMICS_H
#define ALIQUOT_MODEL_ATOMICS_H

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

void model_step(const volatile void *word);
int model_lock(int fd, int command, struct flock *byte);
int model_yield(void);
int model_sleep(const struct timespec *wanted, struct timespec *left);

#define __atomic_load_n(p, order)       (model_step(p), *(p))
#define __atomic_store_n(p, v, order)   (model_step(p), (void)(*(p) = (v)))
#define __atomic_add_fetch(p, v, order) (model_step(p), *(p) += (v))
#define __atomic_sub_fetch(p, v, order) (model_step(p), *(p) -= (v))
#define __atomic_fetch_add(p, v, order) (model_step(p), (*(p) += (v)) - (v))
#define __atomic_exchange_n(p, v, order)                                                                     \
  ({                                                                                                         \
    model_step(p);                                                                                           \
    __typeof__(*(p)) old_ = *(p);                                                                            \
    *(p) = (v);                                                                                              \
    old_;                                                                                                    \
  })
#define __atomic_compare_exchange_n(p, expected, desired, weak, order, failure)                              \
  (model_step(p), *(p) == *(expected) ? (*(p) = (desired), true) : (*(expected) = *(p), false))

#define sched_yield                 model_yield
#define fcntl                       model_lock
#define nanosleep                   model_sleep
#define pthread_mutex_lock(mutex)   ((void)(mutex))
#define pthread_mutex_unlock(mutex) ((void)(mutex))

#endif
