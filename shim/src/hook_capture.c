/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures: counted when they begin and end, nothing else.
 */
#include "capture.h"
#include "hooks.h"

/* Never too low: one whose stream was destroyed stays counted, and costs a question now and then. */
static unsigned captures;

AQ_RARE static bool asked_is_captured(CUstream stream, bool per_thread) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  __typeof__(cuStreamIsCapturing) *ask =
      per_thread ? AQ_REAL(cuStreamIsCapturing_ptsz) : AQ_REAL(cuStreamIsCapturing);
  return ask && ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool aq_captures_run(void) {
  return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) > 0;
}

bool aq_is_captured(CUstream stream, bool per_thread) {
  return aq_captures_run() && asked_is_captured(stream, per_thread);
}

static struct aq_own_calls relax(bool needed) {
  struct aq_own_calls calls = {false, CU_STREAM_CAPTURE_MODE_RELAXED};
  aq_depth++;
  if (needed && AQ_REAL(cuThreadExchangeStreamCaptureMode))
    calls.relaxed = AQ_REAL(cuThreadExchangeStreamCaptureMode)(&calls.mode) == CUDA_SUCCESS;
  return calls;
}

struct aq_own_calls aq_own_calls_begin(void) {
  return relax(aq_captures_run());
}

struct aq_own_calls aq_unsafe_calls_begin(void) {
  return relax(true);
}

void aq_own_calls_end(const struct aq_own_calls *calls) {
  CUstreamCaptureMode mode = calls->mode;
  if (calls->relaxed)
    AQ_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
  aq_depth--;
}

void aq_captures_reset(void) {
  captures = 0;
}

/* Counted before it begins, so that no allocation meanwhile is taken for a plain one. */
static void begin(void) {
  __atomic_add_fetch(&captures, 1, __ATOMIC_SEQ_CST);
}

static CUresult began(CUresult result) {
  if (result != CUDA_SUCCESS)
    __atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
  return result;
}

/* The driver says whether there was one, and whether it is over: an end can fail either way. */
static CUresult ended(CUresult result, CUstream stream, bool per_thread, bool was_captured) {
  if (was_captured && !asked_is_captured(stream, per_thread))
    __atomic_sub_fetch(&captures, 1, __ATOMIC_SEQ_CST);
  return result;
}

#define BEGIN(symbol, parameters, ...)                                                                       \
  CUresult symbol parameters {                                                                               \
    if (!AQ_REAL(symbol))                                                                                    \
      return CUDA_ERROR_NOT_SUPPORTED;                                                                       \
    begin();                                                                                                 \
    return began(AQ_REAL(symbol)(__VA_ARGS__));                                                              \
  }

#define END(symbol, per_thread, parameters, ...)                                                             \
  CUresult symbol parameters {                                                                               \
    if (!AQ_REAL(symbol))                                                                                    \
      return CUDA_ERROR_NOT_SUPPORTED;                                                                       \
    bool was_captured = asked_is_captured(stream, per_thread);                                               \
    return ended(AQ_REAL(symbol)(__VA_ARGS__), stream, per_thread, was_captured);                            \
  }

BEGIN(cuStreamBeginCapture, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
BEGIN(cuStreamBeginCaptureToGraph,
      (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
       size_t count, CUstreamCaptureMode mode),
      stream, graph, dependencies, edges, count, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz,
      (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
       size_t count, CUstreamCaptureMode mode),
      stream, graph, dependencies, edges, count, mode)
BEGIN(cuStreamBeginRecaptureToGraph,
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
       void *data),
      stream, mode, graph, callback, data)
BEGIN(cuStreamBeginRecaptureToGraph_ptsz,
      (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
       void *data),
      stream, mode, graph, callback, data)
BEGIN(cuStreamBeginCaptureToCig, (CUstream stream, CUstreamCigCaptureParams *params), stream, params)
BEGIN(cuStreamBeginCaptureToCig_ptsz, (CUstream stream, CUstreamCigCaptureParams *params), stream, params)

END(cuStreamEndCapture, false, (CUstream stream, CUgraph *graph), stream, graph)
END(cuStreamEndCapture_ptsz, true, (CUstream stream, CUgraph *graph), stream, graph)
END(cuStreamEndCaptureToCig, false, (CUstream stream), stream)
END(cuStreamEndCaptureToCig_ptsz, true, (CUstream stream), stream)
