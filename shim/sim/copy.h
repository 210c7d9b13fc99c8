/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills, done at once. What lies in device memory is kept for the
 * first 64 MiB that a process touches (space.h), and never in arrays; beyond
 * that, ranges are checked, writes are dropped and reads give zeros. All want
 * the driver's lock held.
 */
#ifndef SIM_COPY_H
#define SIM_COPY_H

#include "memory.h"

/* A copy between two places of rows (as cuMemcpy3D). INVALID_VALUE: out of a range, nothing was copied.
 * Managed memory that is written to comes to the context's GPU; NULL: stays where it is. */
CUresult copy_run(const CUDA_MEMCPY3D *copy, CUcontext context);

/* A fill of rows (as cuMemsetD2D*). */
CUresult fill_run(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context);

/* The same, as nodes of a graph. */
CUresult copy_node(const CUDA_MEMCPY3D *copy);
CUresult fill_node(const CUDA_MEMSET_NODE_PARAMS *fill);

/* In which order a call stands with others. */
struct copy_order {
  bool asynchronous;
  bool per_thread;
  CUstream stream; /* asynchronous */
};

/* Whole calls, without the lock: at once, or as a node of the capture that the stream is in. */
CUresult copy_call(const CUDA_MEMCPY3D *copy, struct copy_order order);
CUresult fill_call(const CUDA_MEMSET_NODE_PARAMS *fill, struct copy_order order);

#endif
