/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks through memory that has an address, or gets one.
 */
#include "families.h"

/* --- pools --- */

void default_pool(void) {
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

void own_pools(void) {
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

void destroyed_pool(void) {
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

void vmm(void) {
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

void many_mappings(void) {
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

void exported(void) {
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

void multicast(void) {
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

/* --- linear memory, also freed in stream order --- */

void linear(void) {
  CUdeviceptr a, b, c;
  CUdeviceptr_v1 low;
  size_t pitch;
  begin();
  step("small", cuMemAlloc_v2(&a, 100));
  step("page", cuMemAlloc_v2(&b, PAGE + 1));
  step("low", cuMemAlloc(&low, 5000));
  step("pitched", cuMemAllocPitch_v2(&c, &pitch, 1000, 3000, 4));
  step("free in stream order", cuMemFreeAsync(b, NULL));
  step("free twice", cuMemFreeAsync(b, NULL));
  step("free", cuMemFree_v2(a));
  step("free twice", cuMemFree_v2(a));
  step("free inside", cuMemFree_v2(c + 512));
  step("free", cuMemFree_v2(c));
  step("free nothing", cuMemFree_v2(0));
  step("free low", cuMemFree(low));
  step("nothing", cuMemAlloc_v2(&a, 0));
  step("nowhere", cuMemAlloc_v2(NULL, 1));
  step("too much", cuMemAlloc_v2(&a, (size_t)1 << 60));
}

/* --- managed memory --- */

void managed(void) {
  CUdeviceptr a, b;
  CUmemoryPool pool;
  CUmemPoolProps props = on_device();
  begin();
  step("allocate", cuMemAllocManaged(&a, 10 * MIB, 1));
  step("bad flags", cuMemAllocManaged(&b, 10 * MIB, 77));
  step("free", cuMemFree_v2(a));
  props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  props.location.type = 0;
  step("pool", cuMemPoolCreate(&pool, &props));
  step("allocate of it", cuMemAllocFromPoolAsync(&a, 10 * MIB, pool, NULL));
  step("free", cuMemFreeAsync(a, NULL));
  step("destroy", cuMemPoolDestroy(pool));
}

/* --- arrays --- */

void arrays(void) {
  static const CUDA_ARRAY3D_DESCRIPTOR shapes[] = {
      {1000, 0, 0, 0x20, 1, 0},      {1000, 700, 0, 0x20, 4, 0},    {300, 200, 100, 0x10, 2, 0},
      {512, 512, 6, 0x01, 4, 4},     {256, 128, 9, 0x20, 1, 1},     {4000, 4000, 0, 0x01, 1, 0},
      {1000, 700, 0, 0x20, 4, 0x80}, {1000, 700, 0, 0x20, 4, 0x40}, {1000, 700, 0, 0x20, 3, 0},
      {0, 0, 0, 0x20, 1, 0},         {1000, 700, 0, 0x91, 4, 0},    {1024, 768, 0, 0xb0, 3, 0},
  };
  CUarray array[12], plain, level;
  CUmipmappedArray mipmap[12];
  CUDA_ARRAY_DESCRIPTOR flat = {640, 480, 0x20, 1};
  CUcontext primary = begin(), made;
  for (int i = 0; i < 12; i++) {
    array[i] = NULL;
    step("array", cuArray3DCreate_v2(&array[i], &shapes[i]));
  }
  step("plain", cuArrayCreate_v2(&plain, &flat));
  for (int i = 0; i < 12; i++)
    if (array[i])
      step("destroy", cuArrayDestroy(array[i]));
  step("destroy twice", cuArrayDestroy(plain) || cuArrayDestroy(plain) == 0);
  for (int i = 0; i < 12; i++) {
    mipmap[i] = NULL;
    step("mipmap", cuMipmappedArrayCreate(&mipmap[i], &shapes[i], (unsigned)i % 5));
  }
  if (mipmap[1] && cuMipmappedArrayGetLevel(&level, mipmap[1], 0) == 0)
    step("destroy a level", cuArrayDestroy(level));
  for (int i = 0; i < 12; i++)
    if (mipmap[i])
      step("destroy", cuMipmappedArrayDestroy(mipmap[i]));
  step("create", cuCtxCreate_v2(&made, 0, 0));
  step("plain", cuArrayCreate_v2(&plain, &flat));
  step("destroy context", cuCtxDestroy_v2(made));
  step("current", cuCtxSetCurrent(primary));
}
