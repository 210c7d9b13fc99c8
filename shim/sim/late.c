/* SPDX-License-Identifier: Apache-2.0
 *
 * Frees that wait for their streams: each is an event of nobody's, recorded where the free was called.
 */
#include "late.h"

#include <stdlib.h>

#include "work_list.h"

struct late {
  struct late *next;
  struct space_block *block;
  struct CUevent_st reached;
};

static struct late *first;

CUresult late_free(struct space_block *block, CUstream stream) {
  struct late *late = calloc(1, sizeof *late);
  if (!late) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = work_record(stream, &late->reached);
  if (result != CUDA_SUCCESS || event_is_done(&late->reached)) {
    free(late);
    if (result == CUDA_SUCCESS) {
      memory_release(block);
    }
    return result;
  }
  block->leaving = true;
  late->block = block;
  late->next = first;
  first = late;
  return CUDA_SUCCESS;
}

static void drop(struct late **link) {
  struct late *late = *link;
  *link = late->next;
  late->block->leaving = false;
  work_forget_event(&late->reached);
  free(late);
}

bool late_settle(void) {
  bool any = false;
  for (struct late **link = &first; *link;) {
    struct space_block *block = (*link)->block;
    if (!event_is_done(&(*link)->reached)) {
      link = &(*link)->next;
      continue;
    }
    drop(link);
    memory_release(block);
    any = true;
  }
  return any;
}

void late_forget(const struct space_block *block) {
  for (struct late **link = &first; *link; link = &(*link)->next) {
    if ((*link)->block == block) {
      drop(link);
      return;
    }
  }
}
