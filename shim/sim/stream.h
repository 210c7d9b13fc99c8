/* SPDX-License-Identifier: Apache-2.0
 *
 * What streams tell the other parts. All want the driver's lock held.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "driver.h"

/* Context of a stream: for NULL and the two default streams the current one. INVALID_HANDLE for a stream that
 * is gone, INVALID_CONTEXT without a context. */
CUresult stream_owner(CUstream stream, CUcontext *context);

#endif
