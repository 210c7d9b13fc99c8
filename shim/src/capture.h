/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream captures in progress. Without any, nobody pays for asking.
 *
 * While one runs, a driver call that is "potentially unsafe" can invalidate it, from any thread
 * (cuStreamBeginCapture_v2, CU_STREAM_CAPTURE_MODE_GLOBAL). Calls of our own that are not the
 * program's stand between aq_own_calls_begin and aq_own_calls_end.
 */
#ifndef ALIQUOT_CAPTURE_H
#define ALIQUOT_CAPTURE_H

#include <stdbool.h>

#include "abi.h"

/* True if work for `stream` becomes nodes of a graph. `per_thread`: what a NULL stream means. */
bool aq_is_captured(CUstream stream, bool per_thread);

/* True if a capture may be running, anywhere in this process. */
bool aq_captures_run(void);

/* Also lets the driver's calls of its own exports pass. */
struct aq_own_calls {
  bool relaxed;
  CUstreamCaptureMode mode;
};
struct aq_own_calls aq_own_calls_begin(void);
/* For calls that would spoil a capture which another thread begins meanwhile. */
struct aq_own_calls aq_unsafe_calls_begin(void);
void aq_own_calls_end(const struct aq_own_calls *calls);

/* In a forked child. */
void aq_captures_reset(void);

#endif
