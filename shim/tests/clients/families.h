/* SPDX-License-Identifier: Apache-2.0
 *
 * The walks of families.c, and what they share.
 */
#ifndef FAMILIES_H
#define FAMILIES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_api.h"

#define MIB  (1ULL << 20)
#define PAGE (2 * MIB)

CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray mipmap, unsigned int number);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                               size_t count, CUdeviceptr pointer);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  size_t count, CUgraph child);

struct resource {
  long words[64];
};
CUresult cuDeviceGetDevResource(CUdevice dev, struct resource *resource, int type);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, struct resource *resources, unsigned int count);

struct CUmulticastObjectProp_st {
  unsigned int numDevices;
  size_t size;
  unsigned long long handleTypes;
  unsigned long long flags;
};
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument);

/* Prints, and waits until the books have been looked at. */
void step(const char *name, CUresult result);
/* cuInit and a primary context, made current. */
CUcontext begin(void);
/* Properties of a pool on the first GPU. */
CUmemPoolProps on_device(void);
/* ... and of memory without an address. */
CUmemAllocationProp physical(void);

void default_pool(void);
void own_pools(void);
void destroyed_pool(void);
void vmm(void);
void many_mappings(void);
void exported(void);
void multicast(void);
void linear(void);
void contexts(void);
void limits(void);
void green(void);
void managed(void);
void arrays(void);
void graphs(void);
void captured(void);
void freed_late(void);
void ipc(void);
void external(void);
void checkpointed(void);
void attached(void);
void code(void);

#endif
