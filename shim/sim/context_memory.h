/* SPDX-License-Identifier: Apache-2.0
 *
 * What a context costs beyond its base: limits, stacks, code. All of it ends
 * with the context. All want the driver's lock held.
 *
 * Limits at creation are NVIDIA's defaults (CUDA programming guide: stack 1 KiB
 * per thread, printf FIFO 1 MiB, heap 8 MiB, 2 levels of synchronising grids,
 * 2048 pending launches); they are part of the base. What more costs:
 * heap, FIFO: the bytes. Stack: the bytes times the threads that can be
 * resident. The others: of the order that the guide tells, not measured.
 */
#ifndef SIM_CONTEXT_MEMORY_H
#define SIM_CONTEXT_MEMORY_H

#include "driver.h"

/* Set the limits of a new context. */
void context_limits_begin(CUcontext context);

/* Code of a module or of a kernel first used: takes so many bytes until `context_code_end`, or as long as the
 * context lives. OUT_OF_MEMORY: nothing changed. */
CUresult context_code(CUcontext context, uint64_t bytes);
void context_code_end(CUcontext context, uint64_t bytes);

/* A launch needs so many bytes of stack for each thread: the driver raises the limit by itself. */
CUresult context_stack(CUcontext context, size_t bytes);

/* What the context costs beside its base. */
uint64_t context_extra(CUcontext context);

#endif
