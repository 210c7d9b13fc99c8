/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events. Work is done at once, so a stream is a name and an event
 * is the time at which it was recorded.
 */
#include "stream.h"

#include <stdlib.h>
#include <time.h>

#include "pool.h"

#define STREAM_MARK 0x4d525453U
#define EVENT_MARK  0x544e5645U

/* Destroyed objects keep their memory for the next ones: a stale handle is seen as such. */
struct CUstream_st {
  uint32_t mark; /* 0 = destroyed */
  unsigned flags;
  int priority;
  CUcontext context;
  uint64_t serial; /* of the context */
  struct CUstream_st *next;
};

struct CUevent_st {
  uint32_t mark;
  unsigned flags;
  bool recorded;
  struct timespec time;
  CUcontext context;
  struct CUevent_st *next;
};

static struct CUstream_st *free_streams;
static struct CUevent_st *free_events;

static CUresult enter_context(CUcontext *context) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = context_current(context);
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

static bool is_default(CUstream stream) {
  return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUresult stream_owner(CUstream stream, CUcontext *context) {
  if (is_default(stream)) {
    return context_current(context);
  }
  if (stream->mark != STREAM_MARK || stream->serial != stream->context->serial) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *context = stream->context;
  return CUDA_SUCCESS;
}

/* Lock the driver; fail unless there is a context for the stream. */
static CUresult enter_stream(CUstream stream) {
  CUcontext context;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = stream_owner(stream, &context);
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

static bool is_event(CUevent event) {
  return event && event->mark == EVENT_MARK;
}

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
  CUcontext context;
  CUresult result = enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct CUstream_st *stream = free_streams ? free_streams : calloc(1, sizeof *stream);
  if (!stream) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  free_streams = stream->next;
  *stream = (struct CUstream_st){.mark = STREAM_MARK,
                                 .flags = flags,
                                 .priority = priority > 0    ? 0
                                             : priority < -5 ? -5
                                                             : priority,
                                 .context = context,
                                 .serial = context->serial};
  *phStream = stream;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
  return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream hStream) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (is_default(hStream) || hStream->mark != STREAM_MARK) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  hStream->mark = 0;
  hStream->next = free_streams;
  free_streams = hStream;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream hStream) {
  return cuStreamDestroy_v2(hStream);
}

static CUresult touch(CUstream stream) {
  CUresult result = enter_stream(stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  pools_synchronized();
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream hStream) {
  return touch(hStream);
}
CUresult cuStreamSynchronize_ptsz(CUstream hStream) {
  return touch(hStream);
}
CUresult cuStreamQuery(CUstream hStream) {
  return touch(hStream);
}
CUresult cuStreamQuery_ptsz(CUstream hStream) {
  return touch(hStream);
}

static CUresult stream_context(CUstream stream, CUcontext *pctx) {
  CUresult result = enter_stream(stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pctx) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (is_default(stream)) {
    return driver_leave(context_current(pctx));
  }
  *pctx = stream->context;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx) {
  return stream_context(hStream, pctx);
}
CUresult cuStreamGetCtx_ptsz(CUstream hStream, CUcontext *pctx) {
  return stream_context(hStream, pctx);
}

static CUresult stream_flags(CUstream stream, unsigned *flags) {
  CUresult result = enter_stream(stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!flags) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *flags = is_default(stream) ? 0 : stream->flags;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags) {
  return stream_flags(hStream, flags);
}
CUresult cuStreamGetFlags_ptsz(CUstream hStream, unsigned int *flags) {
  return stream_flags(hStream, flags);
}

static CUresult stream_priority(CUstream stream, int *priority) {
  CUresult result = enter_stream(stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!priority) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  *priority = is_default(stream) ? 0 : stream->priority;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority) {
  return stream_priority(hStream, priority);
}
CUresult cuStreamGetPriority_ptsz(CUstream hStream, int *priority) {
  return stream_priority(hStream, priority);
}

static CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  CUresult result = enter_stream(stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool valid = flags == CU_EVENT_WAIT_DEFAULT || flags == CU_EVENT_WAIT_EXTERNAL;
  return driver_leave(!is_event(event) ? CUDA_ERROR_INVALID_HANDLE
                      : valid          ? CUDA_SUCCESS
                                       : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return wait_event(hStream, hEvent, Flags);
}
CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return wait_event(hStream, hEvent, Flags);
}

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
  const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  CUcontext context;
  CUresult result = enter_context(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!phEvent || (Flags & ~known) != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  struct CUevent_st *event = free_events ? free_events : calloc(1, sizeof *event);
  if (!event) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  free_events = event->next;
  *event = (struct CUevent_st){.mark = EVENT_MARK, .flags = Flags, .context = context};
  *phEvent = event;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!is_event(hEvent)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  hEvent->mark = 0;
  hEvent->next = free_events;
  free_events = hEvent;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent hEvent) {
  return cuEventDestroy_v2(hEvent);
}

static CUresult record(CUevent event, CUstream stream, unsigned flags) {
  CUresult result = enter_stream(stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!is_event(event)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  if (flags > CU_EVENT_RECORD_EXTERNAL) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  event->recorded = true;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  return record(hEvent, hStream, 0);
}
CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) {
  return record(hEvent, hStream, 0);
}
CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, flags);
}
CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return record(hEvent, hStream, flags);
}

CUresult cuEventQuery(CUevent hEvent) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!is_event(hEvent)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  pools_synchronized();
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventSynchronize(CUevent hEvent) {
  return cuEventQuery(hEvent);
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!pMilliseconds) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (!is_event(hStart) || !is_event(hEnd) || !hStart->recorded || !hEnd->recorded ||
      ((hStart->flags | hEnd->flags) & CU_EVENT_DISABLE_TIMING)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  *pMilliseconds = (float)((double)(hEnd->time.tv_sec - hStart->time.tv_sec) * 1e3 +
                           (double)(hEnd->time.tv_nsec - hStart->time.tv_nsec) / 1e6);
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
  return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}
