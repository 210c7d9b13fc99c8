/* SPDX-License-Identifier: Apache-2.0
 *
 * A hammer for all families of device memory at once: pools, memory without
 * addresses, exportable memory, arrays, managed memory, context limits. At the
 * end of its rounds it holds nothing but its context.
 *
 *   families THREADS ROUNDS(0 = for ever) [COUNTER_FILE]
 *
 * The counter file shows progress: 8 bytes, one more per round.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuMemAllocAsync(uint64_t *address, size_t size, void *stream);
int cuMemAllocFromPoolAsync(uint64_t *address, size_t size, void *pool, void *stream);
int cuMemFreeAsync(uint64_t address, void *stream);
int cuMemPoolCreate(void **pool, const void *props);
int cuMemPoolDestroy(void *pool);
int cuMemPoolExportToShareableHandle(void *handle, void *pool, int type, unsigned long long flags);
int cuMemCreate(uint64_t *handle, size_t size, const void *prop, unsigned long long flags);
int cuMemRelease(uint64_t handle);
int cuMemExportToShareableHandle(void *shareable, uint64_t handle, int type, unsigned long long flags);
int cuMemImportFromShareableHandle(uint64_t *handle, void *shareable, int type);
int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t hint,
                        unsigned long long flags);
int cuMemAddressFree(uint64_t address, size_t size);
int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags);
int cuMemUnmap(uint64_t address, size_t size);
int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags);
int cuMemPrefetchAsync(uint64_t address, size_t size, int device, void *stream);
int cuMemFree_v2(uint64_t address);
int cuArray3DCreate_v2(void **array, const void *about);
int cuArrayDestroy(void *array);

#define PAGE       (2UL << 20)
#define DESCRIPTOR 1

static const struct memory_prop {
  int type, handles, location_type, location_id;
  void *windows;
  unsigned char flags[8];
} plain = {.type = 1, .location_type = 1},
  exportable = {.type = 1, .handles = DESCRIPTOR, .location_type = 1};

static const struct {
  int type, handles, location_type, location_id;
  void *security;
  size_t maximum;
  unsigned char rest[56];
} shared_pool = {.type = 1, .handles = DESCRIPTOR, .location_type = 1};

static unsigned long rounds;
static void *context;
static _Atomic uint64_t nowhere;
static _Atomic uint64_t *counter = &nowhere;

/* Out of memory is an answer; anything else is not. True: done. */
static int done(int code, const char *what) {
  if (code != 0 && code != 2) {
    fprintf(stderr, "families: %s: %d\n", what, code);
    _exit(1);
  }
  return code == 0;
}

static void must(int code, const char *what) {
  if (code != 0) {
    fprintf(stderr, "families: %s: %d\n", what, code);
    _exit(1);
  }
}

static void use_default_pool(unsigned *seed, size_t size) {
  uint64_t address[4];
  int count = 0;
  while (count < 4 && done(cuMemAllocAsync(&address[count], 1 + size / 2, NULL), "cuMemAllocAsync")) {
    count++;
  }
  while (count > 0) {
    must(cuMemFreeAsync(address[--count], NULL), "cuMemFreeAsync");
  }
  if (rand_r(seed) % 4 == 0) {
    must(cuCtxSynchronize(), "cuCtxSynchronize");
  }
}

static void use_shared_pool(size_t size) {
  void *pool;
  uint64_t address;
  int fd;
  if (!done(cuMemPoolCreate(&pool, &shared_pool), "cuMemPoolCreate")) {
    return;
  }
  int taken = done(cuMemAllocFromPoolAsync(&address, size, pool, NULL), "cuMemAllocFromPoolAsync");
  must(cuMemPoolExportToShareableHandle(&fd, pool, DESCRIPTOR, 0), "cuMemPoolExportToShareableHandle");
  must(cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  if (taken) {
    must(cuMemFreeAsync(address, NULL), "cuMemFreeAsync of a destroyed pool");
  }
  close(fd);
}

static void use_mapping(size_t size) {
  uint64_t handle;
  uint64_t address;
  size = (size + PAGE - 1) / PAGE * PAGE;
  if (!done(cuMemCreate(&handle, size, &plain, 0), "cuMemCreate")) {
    return;
  }
  must(cuMemAddressReserve(&address, size, 0, 0, 0), "cuMemAddressReserve");
  must(cuMemMap(address, size, 0, handle, 0), "cuMemMap");
  must(cuMemRelease(handle), "cuMemRelease");
  must(cuMemUnmap(address, size), "cuMemUnmap");
  must(cuMemAddressFree(address, size), "cuMemAddressFree");
}

static void use_export(size_t size) {
  uint64_t handle;
  uint64_t again;
  int fd;
  size = (size + PAGE - 1) / PAGE * PAGE;
  if (!done(cuMemCreate(&handle, size, &exportable, 0), "cuMemCreate for export")) {
    return;
  }
  must(cuMemExportToShareableHandle(&fd, handle, DESCRIPTOR, 0), "cuMemExportToShareableHandle");
  must(cuMemRelease(handle), "cuMemRelease of exported memory");
  must(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, DESCRIPTOR), "cuMemImport");
  close(fd);
  must(cuMemRelease(again), "cuMemRelease of imported memory");
}

static void use_array(size_t size) {
  const struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
  } about = {.width = 1 + size / 4096, .height = 1000, .format = 0x20, .channels = 1};
  void *array;
  if (done(cuArray3DCreate_v2(&array, &about), "cuArray3DCreate")) {
    must(cuArrayDestroy(array), "cuArrayDestroy");
  }
}

static void use_managed(size_t size) {
  uint64_t address;
  if (done(cuMemAllocManaged(&address, size, 1), "cuMemAllocManaged")) {
    must(cuMemPrefetchAsync(address, size, 0, NULL), "cuMemPrefetchAsync");
    must(cuMemFree_v2(address), "cuMemFree of managed memory");
  }
}

static void *hammer(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument ^ (unsigned)getpid();
  cuCtxSetCurrent(context);
  for (unsigned long round = 0; rounds == 0 || round < rounds; round++) {
    size_t size = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 2 ? 4096 : 200 << 20);
    switch (rand_r(&seed) % 6) {
    case 0:
      use_default_pool(&seed, size);
      break;
    case 1:
      use_shared_pool(size);
      break;
    case 2:
      use_mapping(size);
      break;
    case 3:
      use_export(size);
      break;
    case 4:
      use_array(size);
      break;
    default:
      use_managed(size);
    }
    atomic_fetch_add(counter, 1);
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[64];
  int count = argc > 2 ? atoi(argv[1]) : 0;
  if (count < 1 || count > 64) {
    must(2, "usage: families THREADS ROUNDS [COUNTER_FILE]");
  }
  rounds = strtoul(argv[2], NULL, 10);
  if (argc > 3) {
    int fd = open(argv[3], O_RDWR | O_CLOEXEC);
    void *map = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(map == MAP_FAILED, "counter file");
    counter = map;
  }
  must(cuInit(0), "cuInit");
  must(cuDevicePrimaryCtxRetain(&context, 0), "start");
  for (int i = 0; i < count; i++) {
    pthread_create(&threads[i], NULL, hammer, (void *)(uintptr_t)(i + 1));
  }
  for (int i = 0; i < count; i++) {
    pthread_join(threads[i], NULL);
  }
  cuCtxSetCurrent(context);
  must(cuCtxSynchronize(), "cuCtxSynchronize at the end");
  printf("done\n");
  fflush(stdout);
  getchar(); /* until somebody has looked at the books */
  return 0;
}
