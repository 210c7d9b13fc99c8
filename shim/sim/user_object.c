/* SPDX-License-Identifier: Apache-2.0
 *
 * User objects: counted by the program and by graphs. The last one to let go has the program's function
 * called, in a thread that must not call the driver (cuda.h at cuUserObjectCreate).
 */
#include "user_object.h"

#include <signal.h>
#include <stdlib.h>

#include "graph.h"
#include "objects.h"
#include "stream.h"

struct CUuserObject_st {
  unsigned count;
  CUhostFn destroy;
  void *argument;
};

static struct objects objects = {.size = sizeof(struct CUuserObject_st)};

static void *call(void *given) {
  struct CUuserObject_st object = *(struct CUuserObject_st *)given;
  free(given);
  work_call_back(object.destroy, object.argument);
  return NULL;
}

/* Without memory or a thread the program is never told. */
static void destroy(CUuserObject object) {
  pthread_t thread;
  sigset_t all;
  sigset_t before;
  struct CUuserObject_st *given = malloc(sizeof *given);
  if (given) {
    *given = *object;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are not for this thread */
    if (pthread_create(&thread, NULL, call, given) == 0) {
      pthread_detach(thread);
    } else {
      free(given);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
  }
  objects_give(&objects, object);
}

static void let_go(CUuserObject object, unsigned count) {
  object->count -= count;
  if (object->count == 0) {
    destroy(object);
  }
}

/* --- of graphs --- */

static struct user_hold **find(struct user_hold **holds, const struct CUuserObject_st *object) {
  while (*holds && (*holds)->object != object) {
    holds = &(*holds)->next;
  }
  return holds;
}

static bool hold(struct user_hold **holds, CUuserObject object, unsigned count) {
  struct user_hold *held = *find(holds, object);
  if (held) {
    held->count += count;
    return true;
  }
  held = malloc(sizeof *held);
  if (!held) {
    return false;
  }
  *held = (struct user_hold){.next = *holds, .object = object, .count = count};
  *holds = held;
  return true;
}

static void drop(struct user_hold **link, unsigned count) {
  struct user_hold *held = *link;
  CUuserObject object = held->object;
  held->count -= count;
  if (held->count == 0) {
    *link = held->next;
    free(held);
  }
  let_go(object, count);
}

bool user_holds_copy(const struct user_hold *holds, struct user_hold **copy) {
  *copy = NULL;
  for (; holds; holds = holds->next) {
    if (!hold(copy, holds->object, holds->count)) {
      user_holds_end(copy);
      return false;
    }
    holds->object->count += holds->count;
  }
  return true;
}

void user_holds_end(struct user_hold **holds) {
  while (*holds) {
    drop(holds, (*holds)->count);
  }
}

/* --- entry points --- */

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroyer,
                            unsigned int initialRefcount, unsigned int flags) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!object_out || !destroyer || initialRefcount == 0 || initialRefcount > INT32_MAX ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUuserObject object = objects_take(&objects);
  if (!object) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *object = (struct CUuserObject_st){.count = initialRefcount, .destroy = destroyer, .argument = ptr};
  *object_out = object;
  return driver_leave(CUDA_SUCCESS);
}

/* Lock the driver; the object is live and the count one that it can have. */
static CUresult enter(CUuserObject object, unsigned count) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool valid = count > 0 && count <= INT32_MAX && objects_has(&objects, object);
  return valid ? CUDA_SUCCESS : driver_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  CUresult result = enter(object, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (count > INT32_MAX - object->count) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  object->count += count;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  CUresult result = enter(object, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (count > object->count) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  let_go(object, count);
  return driver_leave(CUDA_SUCCESS);
}

/* cuda.h: references of the caller's move to the graph, or the graph gets new ones. */
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
  CUresult result = enter(object, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool moved = flags == CU_GRAPH_USER_OBJECT_MOVE;
  if (!graph_is_live(graph) || (flags != 0 && !moved) || (moved && count > object->count) ||
      (!moved && count > INT32_MAX - object->count)) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!hold(&graph->held, object, count)) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  object->count += moved ? 0 : count;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  CUresult result = enter(object, count);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  struct user_hold **link = graph_is_live(graph) ? find(&graph->held, object) : NULL;
  if (!link || !*link || count > (*link)->count) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  drop(link, count);
  return driver_leave(CUDA_SUCCESS);
}
