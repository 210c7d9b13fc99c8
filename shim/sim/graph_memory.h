/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of graphs: what alloc and free nodes take, keep and give back.
 *
 * An allocation gets its address when its node is added and keeps it; it takes
 * memory when an executable graph that has the node is uploaded or launched,
 * and keeps that until the device is trimmed, whatever is freed meanwhile.
 *
 * The graph side (graph.c) owns nodes, executables and captures and calls this
 * with the driver's lock held. Nothing here is changed on failure.
 */
#ifndef SIM_GRAPH_MEMORY_H
#define SIM_GRAPH_MEMORY_H

#include "driver.h"

/* A new alloc node: checks props (device memory, pinned, no handle types: else INVALID_VALUE or
 * NOT_SUPPORTED) and size, and gives the address. Takes no memory. */
CUresult graph_memory_add(const CUmemPoolProps *props, size_t size, CUdeviceptr *address);

/* The node and every executable made of it are gone (or the capture that made it was abandoned). What it
 * took stays with the device until the trim; a live pointer stays valid until it is freed. */
void graph_memory_remove(CUdeviceptr address);

/* cuGraphUpload: memory for all of an executable's allocations. All or nothing: OUT_OF_MEMORY. */
CUresult graph_memory_upload(const CUdeviceptr *allocations, unsigned count);

/* cuGraphLaunch, before anything runs: upload, then all allocations are live. INVALID_VALUE if one of them
 * still is, unless the executable was made with AUTO_FREE_ON_LAUNCH (`auto_free`). */
CUresult graph_memory_launch(const CUdeviceptr *allocations, unsigned count, bool auto_free);

/* A free node runs, or cuMemFree(Async) of such an address. INVALID_VALUE if it is not live. */
CUresult graph_memory_free(CUdeviceptr address);

/* Whether the address was given by graph_memory_add and is still known: what cuGraphAddMemFreeNode needs. */
bool graph_memory_knows(CUdeviceptr address);

/* Whether a launch allocated it and nothing has freed it. */
bool graph_memory_is_live(CUdeviceptr address);

/* cuDeviceGraphMemTrim, by the GPU's number in the state; false: there was nothing to give back. */
bool graph_memory_reclaim(uint32_t gpu);

#endif
