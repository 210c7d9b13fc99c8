/* SPDX-License-Identifier: Apache-2.0
 *
 * Which GPU a stream belongs to, and in which context it lies.
 */
#ifndef ALIQUOT_STREAMS_H
#define ALIQUOT_STREAMS_H

#include "abi.h"
#include "hot.h"

/* Legacy default stream, per-thread default stream: handles, not pointers; like NULL, of the current context.
 */
#define AQ_STREAM_HANDLES 2

/* Asks the driver: between aq_own_calls_begin and aq_own_calls_end. */
AQ_RARE CUresult aq_stream_device(CUstream stream, CUdevice *device);

#endif
