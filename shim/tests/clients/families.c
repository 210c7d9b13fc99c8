/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks through one family of device memory, step by step. Linked against the driver.
 *
 *   families FAMILY     after each step prints "STEP: RESULT" and waits for a line, so that a test can
 *                       look at the books of the driver and of the shim at that moment
 */
#include <stdarg.h>
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

struct CUmulticastObjectProp_st {
  unsigned int numDevices;
  size_t size;
  unsigned long long handleTypes;
  unsigned long long flags;
};

static void step(const char *name, CUresult result) {
  char line[64];
  printf("%s: %d\n", name, result);
  fflush(stdout);
  if (!fgets(line, sizeof(line), stdin))
    exit(4);
}

static CUcontext begin(void) {
  CUcontext context = NULL;
  step("init", cuInit(0));
  step("context", cuDevicePrimaryCtxRetain(&context, 0));
  step("current", cuCtxSetCurrent(context));
  return context;
}

/* --- pools --- */

static CUmemPoolProps on_device(void) {
  CUmemPoolProps props;
  memset(&props, 0, sizeof(props));
  props.allocType = 1;
  props.location.type = 1;
  return props;
}

static void default_pool(void) {
  CUdeviceptr a, b, c, d;
  CUstream stream;
  CUmemoryPool pool;
  uint64_t threshold = 128 * MIB;
  begin();
  step("stream", cuStreamCreate(&stream, 1));
  step("first", cuMemAllocAsync(&a, 4096, stream));
  step("fits", cuMemAllocAsync(&b, 8 * MIB, stream));
  step("grows", cuMemAllocAsync(&c, 50 * MIB, stream));
  step("other stream", cuMemAllocAsync_ptsz(&d, 100, NULL));
  step("free", cuMemFreeAsync(c, stream));
  step("sync", cuStreamSynchronize(stream));
  step("again", cuMemAllocAsync(&c, 20 * MIB, stream));
  step("pool", cuDeviceGetDefaultMemPool(&pool, 0));
  step("threshold", cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  step("free plainly", cuMemFree_v2(c));
  step("free", cuMemFreeAsync(a, stream));
  step("free", cuMemFreeAsync_ptsz(b, stream));
  step("sync keeps", cuCtxSynchronize());
  step("trim", cuMemPoolTrimTo(pool, 0));
  step("free last", cuMemFreeAsync(d, stream));
  step("sync keeps", cuStreamSynchronize(stream));
  threshold = 0;
  step("threshold", cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  step("sync", cuCtxSynchronize());
}

static void own_pools(void) {
  CUdeviceptr pointers[40], more;
  CUmemoryPool pool, second, host;
  CUmemPoolProps props = on_device();
  begin();
  step("create", cuMemPoolCreate(&pool, &props));
  for (int i = 0; i < 40; i++)
    step("allocate", cuMemAllocFromPoolAsync(&pointers[i], (size_t)(i % 9 + 1) * MIB, pool, NULL));
  for (int i = 0; i < 40; i += 2)
    step("free", cuMemFreeAsync(pointers[i], NULL));
  step("sync", cuStreamSynchronize(NULL));
  step("set current", cuDeviceSetMemPool(0, pool));
  step("from current", cuMemAllocAsync(&more, 3 * MIB, NULL));
  step("create second", cuMemPoolCreate(&second, &props));
  step("set current", cuDeviceSetMemPool(0, second));
  step("from current", cuMemAllocAsync(&pointers[0], 3 * MIB, NULL));
  step("free", cuMemFree_v2(pointers[0]));
  step("destroy current", cuMemPoolDestroy(second));
  step("from the default", cuMemAllocAsync(&pointers[0], 3 * MIB, NULL));
  step("free", cuMemFree_v2(pointers[0]));
  step("sync", cuCtxSynchronize());
  props.location.type = CU_MEM_LOCATION_TYPE_HOST;
  step("create on the host", cuMemPoolCreate(&host, &props));
  step("allocate on the host", cuMemAllocFromPoolAsync(&pointers[0], 100 * MIB, host, NULL));
  step("free", cuMemFreeAsync(pointers[0], NULL));
  step("destroy", cuMemPoolDestroy(host));
  step("destroy twice", cuMemPoolDestroy(host));
  step("free", cuMemFreeAsync(more, NULL));
  for (int i = 1; i < 40; i += 2)
    step("free", cuMemFreeAsync(pointers[i], NULL));
  step("sync", cuStreamSynchronize(NULL));
  step("destroy", cuMemPoolDestroy(pool));
}

static void destroyed_pool(void) {
  CUdeviceptr a, b;
  CUmemoryPool pool;
  CUmemPoolProps props = on_device();
  begin();
  step("create", cuMemPoolCreate(&pool, &props));
  step("allocate", cuMemAllocFromPoolAsync(&a, 40 * MIB, pool, NULL));
  step("allocate", cuMemAllocFromPoolAsync(&b, 10 * MIB, pool, NULL));
  step("free", cuMemFreeAsync(b, NULL));
  step("destroy", cuMemPoolDestroy(pool));
  step("allocate", cuMemAllocFromPoolAsync(&b, 10 * MIB, pool, NULL));
  step("free last", cuMemFreeAsync(a, NULL));
  step("sync", cuCtxSynchronize());
}

/* --- virtual memory management --- */

static CUmemAllocationProp physical(void) {
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof(prop));
  prop.type = 1;
  prop.location.type = 1;
  return prop;
}

static void vmm(void) {
  CUmemGenericAllocationHandle a, b, again;
  CUdeviceptr at;
  CUmemAllocationProp prop = physical();
  begin();
  step("create", cuMemCreate(&a, 4 * PAGE, &prop, 0));
  step("create", cuMemCreate(&b, PAGE, &prop, 0));
  step("reserve", cuMemAddressReserve(&at, 64 * PAGE, 0, 0, 0));
  step("map", cuMemMap(at, 4 * PAGE, 0, a, 0));
  step("map beside", cuMemMap(at + 4 * PAGE, PAGE, 0, b, 0));
  step("map again", cuMemMap(at + 8 * PAGE, 4 * PAGE, 0, a, 0));
  step("map over", cuMemMap(at, PAGE, 0, b, 0));
  step("release mapped", cuMemRelease(a));
  step("release twice", cuMemRelease(a));
  step("retain", cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + PAGE)));
  step("unmap two", cuMemUnmap(at, 5 * PAGE));
  step("unmap twice", cuMemUnmap(at, 4 * PAGE));
  step("release", cuMemRelease(b));
  step("unmap the other", cuMemUnmap(at + 8 * PAGE, 4 * PAGE));
  step("release retained", cuMemRelease(again));
  step("release twice", cuMemRelease(again));
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
  step("create on the host", cuMemCreate(&a, 4 * PAGE, &prop, 0));
  step("map", cuMemMap(at, 4 * PAGE, 0, a, 0));
  step("release", cuMemRelease(a));
  step("unmap", cuMemUnmap(at, 4 * PAGE));
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
  prop.location.id = 0;
  step("create in a domain", cuMemCreate(&a, 4 * PAGE, &prop, 0));
  step("release", cuMemRelease(a));
  step("retain what is not mapped", cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
}

static void many_mappings(void) {
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at;
  CUmemAllocationProp prop = physical();
  begin();
  step("reserve", cuMemAddressReserve(&at, 200 * PAGE, 0, 0, 0));
  for (int i = 0; i < 100; i++) {
    if (cuMemCreate(&handle, PAGE, &prop, 0) || cuMemMap(at + (CUdeviceptr)i * PAGE, PAGE, 0, handle, 0) ||
        cuMemRelease(handle))
      exit(5);
  }
  step("mapped", 0);
  step("unmap part of one", cuMemUnmap(at, PAGE / 2));
  step("unmap half", cuMemUnmap(at, 50 * PAGE));
  step("unmap the rest", cuMemUnmap(at + 50 * PAGE, 50 * PAGE));
}

static void exported(void) {
  CUmemGenericAllocationHandle a, b;
  CUdeviceptr at;
  CUmemAllocationProp prop = physical();
  int fd, second;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  begin();
  step("create", cuMemCreate(&a, 4 * PAGE, &prop, 0));
  step("export", cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  step("export", cuMemExportToShareableHandle(&second, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  step("release", cuMemRelease(a));
  step("import one's own",
       cuMemImportFromShareableHandle(&b, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  close(second);
  step("closed", 0);
  step("reserve", cuMemAddressReserve(&at, 8 * PAGE, 0, 0, 0));
  step("map", cuMemMap(at, 4 * PAGE, 0, b, 0));
  step("release", cuMemRelease(b));
  step("unmap", cuMemUnmap(at, 4 * PAGE));
  step("create", cuMemCreate(&a, 4 * PAGE, &prop, 0));
  step("export", cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(fd);
  step("release", cuMemRelease(a));
}

static void multicast(void) {
  CUmemGenericAllocationHandle team, a, b;
  CUmemAllocationProp prop = physical();
  struct CUmulticastObjectProp_st shape = {.numDevices = 1, .size = 32 * PAGE};
  CUdeviceptr at;
  begin();
  step("create team", cuMulticastCreate(&team, &shape));
  step("add", cuMulticastAddDevice(team, 0));
  step("create", cuMemCreate(&a, 16 * PAGE, &prop, 0));
  step("create", cuMemCreate(&b, 16 * PAGE, &prop, 0));
  step("bind", cuMulticastBindMem(team, 0, a, 0, 16 * PAGE, 0));
  step("bind over", cuMulticastBindMem(team, 0, a, 0, 16 * PAGE, 0));
  step("release bound", cuMemRelease(a));
  step("reserve", cuMemAddressReserve(&at, 64 * PAGE, 0, 0, 0));
  step("map", cuMemMap(at, 16 * PAGE, 0, b, 0));
  step("bind address", cuMulticastBindAddr(team, 16 * PAGE, at, 16 * PAGE, 0));
  step("release", cuMemRelease(b));
  step("unmap", cuMemUnmap(at, 16 * PAGE));
  step("unbind", cuMulticastUnbind(team, 0, 0, 16 * PAGE));
  step("unbind twice", cuMulticastUnbind(team, 0, 0, 16 * PAGE));
  step("release team", cuMemRelease(team));
}

struct family {
  const char *name;
  void (*walk)(void);
};

static const struct family families[] = {
    {"default_pool", default_pool},     {"own_pools", own_pools},
    {"destroyed_pool", destroyed_pool}, {"vmm", vmm},
    {"many_mappings", many_mappings},   {"exported", exported},
    {"multicast", multicast},
};

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && argc == 2; i++)
    if (!strcmp(argv[1], families[i].name)) {
      families[i].walk();
      return 0;
    }
  return 2;
}
