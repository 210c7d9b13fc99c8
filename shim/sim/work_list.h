/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of work that waits for the host, for those who serve it. All of it wants the driver's lock held.
 */
#ifndef SIM_WORK_LIST_H
#define SIM_WORK_LIST_H

#include "stream.h"

enum work_kind { WORK_RUN, WORK_RECORD, WORK_WAIT, WORK_HOST };

struct work {
  struct work *next;
  CUstream stream;
  enum work_kind kind;
  struct batch *batch;
  CUevent event;
  CUhostFn function;         /* or */
  CUstreamCallback callback; /* WORK_HOST */
  void *argument;
  bool running; /* without the lock: stays in the list until it is done */
};

struct work **work_list(void);

/* Take the entry that *link points to out of the list. */
void work_remove(struct work **link);

/* Whether nothing in the list has to come before the entry. */
bool work_is_next(const struct work *work);

void work_forget_event(CUevent event);

/* The context is about to end, and all that waits in it. */
void work_forget_context(CUcontext context);

/* The thread that runs host functions: made by the first one. */
bool work_start_thread(void);
void work_wake_thread(void);

#endif
