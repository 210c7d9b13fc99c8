/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams whose work is written into a graph instead of being run. All of it wants the driver's lock held.
 */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "launch.h"
#include "stream.h"

/* The capture that the stream takes part in, or NULL. */
struct capture *capture_of(const struct CUstream_st *stream);

/* Add to the capture: its error if it is invalid, else what adding says. */
CUresult capture_kernel(CUstream stream, const struct launch *launch, struct engine_cost cost);
CUresult capture_host(CUstream stream, CUhostFn function, void *argument);
CUresult capture_record(CUstream stream, CUevent event, bool external);
CUresult capture_wait(CUstream stream, CUevent event, bool external);

CUresult capture_graph(CUstream stream,
                       CUgraph graph); /* a copy of it, as a child; NULL: it cannot be copied */

/* A call that must not be made while a capture forbids it ("potentially unsafe": cuda.h at
 * cuThreadExchangeStreamCaptureMode). True: one does, and is invalid from now on; answer
 * STREAM_CAPTURE_UNSUPPORTED. */
bool capture_forbids_unsafe(void);

/* True, and the capture is invalid from now on, if the stream takes part in one. */
bool capture_spoil(CUstream stream);
void capture_spoil_event(CUevent event);

/* The legacy stream would have to wait for a blocking stream that is being captured: use of it is an error
 * (STREAM_CAPTURE_IMPLICIT) that spoils that capture. */
bool stream_blocked_by_capture(const struct CUstream_st *stream);
bool capture_spoil_implicit(CUstream stream);

/* The stream is destroyed: it takes part no longer. */
void capture_abandon(CUstream stream);

#endif
