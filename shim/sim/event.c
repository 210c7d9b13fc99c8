/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: recorded in streams, waited for, and the exact time between two.
 */
#include <stdlib.h>

#include "capture.h"
#include "pool.h"
#include "work_list.h"

#define EVENT_MARK 0x544e5645U

static CUevent free_events;

bool event_is_live(CUevent event) {
  return event && event->mark == EVENT_MARK;
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
  const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  CUcontext context;
  CUresult result = driver_enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!phEvent || (Flags & ~known) != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUevent event = free_events ? free_events : calloc(1, sizeof *event);
  if (!event) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  free_events = event->next;
  *event =
      (struct CUevent_st){.mark = EVENT_MARK, .flags = Flags, .context = context, .serial = context->serial};
  *phEvent = event;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!event_is_live(hEvent)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  work_forget_event(hEvent);
  free(hEvent->nodes);
  hEvent->nodes = NULL;
  hEvent->mark = 0;
  hEvent->next = free_events;
  free_events = hEvent;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent hEvent) {
  return cuEventDestroy_v2(hEvent);
}

static CUresult record(CUevent event, CUstream handle, bool per_thread, unsigned flags) {
  CUstream stream;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = stream_find(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  if (!event_is_live(event) || event->context->device != stream->context->device) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  if (flags > CU_EVENT_RECORD_EXTERNAL) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (stream_blocked_by_capture(stream)) {
    capture_spoil_implicit(stream);
    return driver_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  if (capture_of(stream)) {
    return driver_leave(capture_record(stream, event, flags == CU_EVENT_RECORD_EXTERNAL));
  }
  event->capture = NULL;
  return driver_leave(work_record(stream, event));
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  return record(hEvent, hStream, false, 0);
}
CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) {
  return record(hEvent, hStream, true, 0);
}
CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, false, flags);
}
CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, true, flags);
}

/* Lock the driver; the event is one of the GPU, not of a capture. */
static CUresult enter(CUevent event) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!event_is_live(event)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  if (event->capture) {
    capture_spoil_event(event);
    return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
  }
  if (context_is_lost(event->context)) {
    return driver_leave(CUDA_ERROR_UNKNOWN);
  }
  return capture_forbids_unsafe() ? driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent hEvent) {
  CUresult result = enter(hEvent);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!event_is_done(hEvent)) {
    return driver_leave(CUDA_ERROR_NOT_READY);
  }
  pools_synchronized();
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent hEvent) {
  CUresult result;
  while ((result = enter(hEvent)) == CUDA_SUCCESS) {
    if (event_is_done(hEvent)) {
      pools_synchronized();
      return driver_leave(CUDA_SUCCESS);
    }
    uint64_t left = event_left_ns(hEvent);
    driver_unlock();
    work_pause(left);
  }
  return result;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!milliseconds) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!event_is_live(start) || !event_is_live(end) || start->state == EVENT_NEVER ||
      end->state == EVENT_NEVER || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  if (!event_is_done(start) || !event_is_done(end)) {
    return driver_leave(CUDA_ERROR_NOT_READY);
  }
  *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  return elapsed(pMilliseconds, hStart, hEnd);
}
CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  return elapsed(pMilliseconds, hStart, hEnd);
}
