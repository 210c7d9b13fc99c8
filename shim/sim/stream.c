/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: what they are, and waiting for them.
 */
#include <stdlib.h>

#include "capture.h"
#include "mps.h"
#include "pool.h"
#include "stream.h"

#define STREAM_MARK 0x4d525453U

static CUstream all_streams;

CUstream stream_first(void) {
  return all_streams;
}

bool stream_is_blocking(const struct CUstream_st *stream) {
  return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

static bool is_default(CUstream stream) {
  return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static CUstream make(enum stream_kind kind, CUcontext context, unsigned flags, int priority) {
  CUstream stream = all_streams;
  while (stream && (stream->mark != 0 || stream->waiting > 0)) {
    stream = stream->next;
  }
  if (!stream) {
    stream = calloc(1, sizeof *stream);
    if (!stream) {
      return NULL;
    }
    stream->next = all_streams;
    all_streams = stream;
  }
  free(stream->ends);
  free(stream->captured);
  *stream = (struct CUstream_st){.mark = STREAM_MARK,
                                 .kind = kind,
                                 .flags = flags,
                                 .priority = priority > 0    ? 0
                                             : priority < -5 ? -5
                                                             : priority,
                                 .context = context,
                                 .serial = context->serial,
                                 .id = ++driver.serial,
                                 .next = stream->next};
  return stream;
}

static bool is_live(const struct CUstream_st *stream) {
  return stream->mark == STREAM_MARK && stream->serial == stream->context->serial;
}

uint64_t stream_thread(void) {
  static _Thread_local uint64_t number;
  if (number == 0) {
    number = ++driver.serial;
  }
  return number;
}

static CUstream thread_stream(CUcontext context) {
  static _Thread_local CUstream mine;
  uint64_t thread = stream_thread();
  if (mine && mine->thread == thread && mine->context == context && is_live(mine)) {
    return mine;
  }
  for (CUstream stream = all_streams; stream; stream = stream->next) {
    if (stream->kind == STREAM_THREAD && stream->thread == thread && stream->context == context &&
        is_live(stream)) {
      return mine = stream;
    }
  }
  mine = make(STREAM_THREAD, context, 0, 0);
  if (mine) {
    mine->thread = thread;
  }
  return mine;
}

static CUstream legacy_stream(CUcontext context) {
  if (!context->legacy) {
    context->legacy = make(STREAM_LEGACY, context, 0, 0);
  }
  return context->legacy;
}

CUresult stream_find(CUstream handle, bool per_thread, CUstream *stream) {
  if (!is_default(handle)) {
    *stream = handle;
    return !is_live(handle)                   ? CUDA_ERROR_INVALID_HANDLE
           : context_is_lost(handle->context) ? CUDA_ERROR_UNKNOWN
           : mps_fault() != CUDA_SUCCESS      ? (CUresult)mps_fault()
                                              : CUDA_SUCCESS;
  }
  CUcontext context;
  CUresult result = context_current(&context);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bool thread = handle == CU_STREAM_PER_THREAD || (!handle && per_thread);
  *stream = thread ? thread_stream(context) : legacy_stream(context);
  return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_owner(CUstream handle, CUcontext *context) {
  CUstream stream;
  CUresult result = stream_find(handle, false, &stream);
  if (result == CUDA_SUCCESS) {
    *context = stream->context;
  }
  return result;
}

/* Lock the driver and find the stream. */
static CUresult enter(CUstream handle, bool per_thread, CUstream *stream) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = stream_find(handle, per_thread, stream);
  return result == CUDA_SUCCESS ? result : driver_leave(result);
}

/* --- making and ending --- */

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
  CUcontext context;
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = context_current(&context);
  if (result != CUDA_SUCCESS) {
    return driver_leave(result);
  }
  if (!phStream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  CUstream stream = make(STREAM_MADE, context, flags, priority);
  if (!stream) {
    return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *phStream = stream;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
  return cuStreamCreateWithPriority(phStream, Flags, 0);
}

/* Work in the stream goes on. */
CUresult cuStreamDestroy_v2(CUstream hStream) {
  CUresult result = driver_enter();
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (is_default(hStream) || hStream->mark != STREAM_MARK || hStream->kind != STREAM_MADE) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  capture_abandon(hStream);
  hStream->mark = 0;
  return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream hStream) {
  return cuStreamDestroy_v2(hStream);
}

/* --- waiting --- */

/* Asking a captured stream is an error that spoils the capture. */
static CUresult may_ask(CUstream stream) {
  if (capture_spoil(stream)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->kind == STREAM_LEGACY && capture_spoil_implicit(stream)) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return capture_forbids_unsafe() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static CUresult synchronize(CUstream handle, bool per_thread) {
  CUstream stream;
  CUresult result;
  uint64_t id = 0;
  while ((result = enter(handle, per_thread, &stream)) == CUDA_SUCCESS) {
    if (id != 0 && stream->id != id) {
      return driver_leave(CUDA_ERROR_INVALID_HANDLE); /* destroyed while we waited */
    }
    id = stream->id;
    result = may_ask(stream);
    if (result != CUDA_SUCCESS) {
      return driver_leave(result);
    }
    if (stream_is_done(stream)) {
      pools_synchronized();
      return driver_leave(CUDA_SUCCESS);
    }
    uint64_t left = stream_left_ns(stream);
    driver_unlock();
    work_pause(left);
  }
  return result;
}

CUresult cuStreamSynchronize(CUstream hStream) {
  return synchronize(hStream, false);
}
CUresult cuStreamSynchronize_ptsz(CUstream hStream) {
  return synchronize(hStream, true);
}

static CUresult query(CUstream handle, bool per_thread) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = may_ask(stream);
  if (result == CUDA_SUCCESS && !stream_is_done(stream)) {
    return driver_leave(CUDA_ERROR_NOT_READY);
  }
  if (result == CUDA_SUCCESS) {
    pools_synchronized();
  }
  return driver_leave(result);
}

CUresult cuStreamQuery(CUstream hStream) {
  return query(hStream, false);
}
CUresult cuStreamQuery_ptsz(CUstream hStream) {
  return query(hStream, true);
}

static CUresult wait_event(CUstream handle, bool per_thread, CUevent event, unsigned flags) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!event_is_live(event)) {
    return driver_leave(CUDA_ERROR_INVALID_HANDLE);
  }
  if (flags != CU_EVENT_WAIT_DEFAULT && flags != CU_EVENT_WAIT_EXTERNAL) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (capture_of(stream) || event->capture) {
    return driver_leave(capture_wait(stream, event, flags == CU_EVENT_WAIT_EXTERNAL));
  }
  return driver_leave(work_wait(stream, event));
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return wait_event(hStream, false, hEvent, Flags);
}
CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return wait_event(hStream, true, hEvent, Flags);
}

static CUresult host(CUstream handle, bool per_thread, CUhostFn function, CUstreamCallback callback,
                     void *argument) {
  CUstream stream;
  CUresult result = enter(handle, per_thread, &stream);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  if (!function && !callback) {
    return driver_leave(CUDA_ERROR_INVALID_VALUE);
  }
  if (stream_blocked_by_capture(stream)) {
    capture_spoil_implicit(stream);
    return driver_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  if (capture_of(stream)) {
    if (callback) {
      capture_spoil(stream);
      return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); /* cuda.h: may not be captured */
    }
    return driver_leave(capture_host(stream, function, argument));
  }
  return driver_leave(work_host(stream, function, callback, argument));
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
  return host(hStream, false, fn, NULL, userData);
}
CUresult cuLaunchHostFunc_ptsz(CUstream hStream, CUhostFn fn, void *userData) {
  return host(hStream, true, fn, NULL, userData);
}
CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData,
                             unsigned int flags) {
  return flags ? CUDA_ERROR_INVALID_VALUE : host(hStream, false, NULL, callback, userData);
}
CUresult cuStreamAddCallback_ptsz(CUstream hStream, CUstreamCallback callback, void *userData,
                                  unsigned int flags) {
  return flags ? CUDA_ERROR_INVALID_VALUE : host(hStream, true, NULL, callback, userData);
}

/* --- asking what a stream is --- */

#define ASK(NAME, TYPE, EXPRESSION)                                                                          \
  static CUresult ask_##NAME(CUstream handle, bool per_thread, TYPE *output) {                               \
    CUstream stream;                                                                                         \
    CUresult result = enter(handle, per_thread, &stream);                                                    \
    if (result != CUDA_SUCCESS) {                                                                            \
      return result;                                                                                         \
    }                                                                                                        \
    if (!output) {                                                                                           \
      return driver_leave(CUDA_ERROR_INVALID_VALUE);                                                         \
    }                                                                                                        \
    *output = (EXPRESSION);                                                                                  \
    return driver_leave(CUDA_SUCCESS);                                                                       \
  }                                                                                                          \
  CUresult NAME(CUstream hStream, TYPE *output) {                                                            \
    return ask_##NAME(hStream, false, output);                                                               \
  }                                                                                                          \
  CUresult NAME##_ptsz(CUstream hStream, TYPE *output) {                                                     \
    return ask_##NAME(hStream, true, output);                                                                \
  }

ASK(cuStreamGetCtx, CUcontext, stream->context)
ASK(cuStreamGetFlags, unsigned int, stream->flags)
ASK(cuStreamGetPriority, int, stream->priority)
ASK(cuStreamGetId, unsigned long long, stream->id)
ASK(cuStreamGetDevice, CUdevice, (CUdevice)stream->context->device)
