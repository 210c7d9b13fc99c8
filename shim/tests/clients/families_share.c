/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks through memory that other processes or programs have a part in, and through code.
 */
#include "families.h"

#include <sys/wait.h>

struct ipc_handle {
  char bytes[64];
};

CUresult cuIpcGetMemHandle(struct ipc_handle *handle, CUdeviceptr pointer);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, struct ipc_handle handle, unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer);

/* CUDA_EXTERNAL_MEMORY_HANDLE_DESC, of a descriptor, and what is mapped of it. */
struct external {
  int type;
  union {
    int fd;
    void *words[2];
  };
  unsigned long long size;
  unsigned int flags;
  unsigned int reserved[16];
};

struct external_buffer {
  unsigned long long offset, size;
  unsigned int flags;
  unsigned int reserved[16];
};

struct external_mipmap {
  unsigned long long offset;
  CUDA_ARRAY3D_DESCRIPTOR shape;
  unsigned int levels;
  unsigned int reserved[16];
};

typedef struct CUextMemory_st *CUexternalMemory;
CUresult cuImportExternalMemory(CUexternalMemory *memory, const struct external *about);
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory,
                                         const struct external_buffer *part);
CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory memory,
                                                 const struct external_mipmap *part);
CUresult cuDestroyExternalMemory(CUexternalMemory memory);

CUresult cuCheckpointProcessGetState(int pid, int *state);
CUresult cuCheckpointProcessLock(int pid, void *arguments);
CUresult cuCheckpointProcessCheckpoint(int pid, void *arguments);
CUresult cuCheckpointProcessRestore(int pid, void *arguments);
CUresult cuCheckpointProcessUnlock(int pid, void *arguments);

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name);
CUresult cuMemsetD8_v2(CUdeviceptr pointer, unsigned char value, size_t bytes);
typedef struct CUlinkState_st *CUlinkState;
CUresult cuLinkCreate_v2(unsigned int count, int *options, void **values, CUlinkState *state);
CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t size, const char *name,
                          unsigned int count, int *options, void **values);
CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *size);
CUresult cuLinkDestroy(CUlinkState state);

/* --- handles of another process's memory --- */

/* What the other process is asked to do. */
struct request {
  enum { OPEN, CLOSE, FREE, END } what;
  struct ipc_handle handle;
  CUdeviceptr pointer;
};

struct reply {
  CUresult result;
  CUdeviceptr pointer;
};

static int requests[2], replies[2];

static void serve(void) {
  struct request request;
  CUcontext context;
  struct reply reply = {cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context), 0};
  while (write(replies[1], &reply, sizeof(reply)) == sizeof(reply) &&
         read(requests[0], &request, sizeof(request)) == sizeof(request) && request.what != END) {
    reply.pointer = request.pointer;
    if (request.what == OPEN)
      reply.result = cuIpcOpenMemHandle_v2(&reply.pointer, request.handle, 1);
    else if (request.what == CLOSE)
      reply.result = cuIpcCloseMemHandle(request.pointer);
    else
      reply.result = cuMemFree_v2(request.pointer);
  }
  _exit(0);
}

static struct reply answer(void) {
  struct reply reply = {-1, 0};
  if (read(replies[0], &reply, sizeof(reply)) != sizeof(reply))
    exit(5);
  return reply;
}

static struct reply ask(struct request request) {
  if (write(requests[1], &request, sizeof(request)) != sizeof(request))
    exit(5);
  return answer();
}

void ipc(void) {
  struct request open = {.what = OPEN}, small = {.what = OPEN};
  struct reply first, second;
  CUdeviceptr a, b, c;
  if (pipe(requests) || pipe(replies))
    exit(5);
  pid_t other = fork();
  if (other == 0)
    serve();
  begin();
  step("other begins", answer().result);
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("allocate", cuMemAlloc_v2(&b, 3000));
  step("handle", cuIpcGetMemHandle(&open.handle, a));
  step("handle", cuIpcGetMemHandle(&small.handle, b));
  step("open one's own", cuIpcOpenMemHandle_v2(&c, open.handle, 1));
  first = ask(open);
  step("open", first.result);
  second = ask(open);
  step("open twice", second.result);
  step("the same", first.pointer != second.pointer);
  step("open small", ask(small).result);
  step("free what is imported", ask((struct request){.what = FREE, .pointer = first.pointer}).result);
  step("close", ask((struct request){.what = CLOSE, .pointer = first.pointer}).result);
  step("free", cuMemFree_v2(b));
  step("close", ask((struct request){.what = CLOSE, .pointer = first.pointer}).result);
  step("close once too often", ask((struct request){.what = CLOSE, .pointer = first.pointer}).result);
  step("close what is not open", cuIpcCloseMemHandle(a));
  step("free", cuMemFree_v2(a));
  ask(open); /* what a handle of freed memory is, the driver may say */
  if (write(requests[1], &(struct request){.what = END}, sizeof(struct request)) < 0)
    exit(5);
  step("other ends", waitpid(other, NULL, 0) != other);
}

/* --- memory that is not CUDA's --- */

void external(void) {
  struct external about = {.type = 1, .size = 16 * MIB};
  struct external_buffer part = {.offset = 2 * MIB, .size = 8 * MIB};
  struct external_mipmap layers = {.shape = {512, 512, 0, 0x20, 1, 0}, .levels = 3};
  CUexternalMemory memory;
  CUdeviceptr pointer, own;
  CUmipmappedArray mipmap;
  int ends[2];
  CUcontext primary = begin(), made;
  if (pipe(ends))
    exit(5);
  about.fd = -1;
  step("import nothing", cuImportExternalMemory(&memory, &about));
  about.fd = ends[0];
  step("import", cuImportExternalMemory(&memory, &about));
  step("map", cuExternalMemoryGetMappedBuffer(&pointer, memory, &part));
  step("map an array", cuExternalMemoryGetMappedMipmappedArray(&mipmap, memory, &layers));
  step("allocate", cuMemAlloc_v2(&own, 4 * MIB));
  step("destroy the array", cuMipmappedArrayDestroy(mipmap));
  step("free", cuMemFree_v2(pointer));
  step("free twice", cuMemFree_v2(pointer));
  step("destroy", cuDestroyExternalMemory(memory));
  step("destroy twice", cuDestroyExternalMemory(memory));
  step("free", cuMemFree_v2(own));
  step("create", cuCtxCreate_v2(&made, 0, 0));
  about.fd = ends[1];
  step("import", cuImportExternalMemory(&memory, &about));
  step("map", cuExternalMemoryGetMappedBuffer(&pointer, memory, &part));
  step("allocate", cuMemAlloc_v2(&own, 6 * MIB));
  step("destroy context", cuCtxDestroy_v2(made));
  step("current", cuCtxSetCurrent(primary));
  step("free what is gone", cuMemFree_v2(pointer));
}

/* --- a process that leaves the GPU and comes back --- */

void checkpointed(void) {
  CUdeviceptr a, b, c;
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp prop = physical();
  int pid = getpid(), state;
  begin();
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("allocate of a pool", cuMemAllocAsync(&b, 4 * MIB, NULL));
  step("create", cuMemCreate(&handle, PAGE, &prop, 0));
  step("checkpoint unlocked", cuCheckpointProcessCheckpoint(pid, NULL));
  step("another process", cuCheckpointProcessLock(1, NULL));
  step("lock", cuCheckpointProcessLock(pid, NULL));
  step("gone", cuCheckpointProcessCheckpoint(pid, NULL));
  step("gone", cuCheckpointProcessGetState(pid, &state));
  step("restore", cuCheckpointProcessRestore(pid, NULL));
  step("unlock", cuCheckpointProcessUnlock(pid, NULL));
  step("allocate", cuMemAlloc_v2(&c, 20 * MIB));
  step("free", cuMemFree_v2(a));
  step("free of a pool", cuMemFree_v2(b));
  step("free", cuMemFree_v2(c));
  step("release", cuMemRelease(handle));
  step("sync", cuCtxSynchronize());
}

/* --- contexts with several users --- */

void attached(void) {
  CUcontext primary = begin(), made, other, same;
  CUdeviceptr a;
  step("attach to the primary", cuCtxAttach(&same, 0));
  step("create", cuCtxCreate_v2(&other, 0, 0));
  step("create", cuCtxCreate_v2(&made, 0, 0));
  step("allocate", cuMemAlloc_v2(&a, 10 * MIB));
  step("attach", cuCtxAttach(&same, 0));
  step("attach", cuCtxAttach(&same, 0));
  step("the same", same != made);
  step("bad flags", cuCtxAttach(&same, 7));
  step("detach", cuCtxDetach(made));
  step("detach another", cuCtxDetach(other));
  step("detach", cuCtxDetach(made));
  step("detach last", cuCtxDetach(made));
  step("current", cuCtxSetCurrent(other));
  step("attach", cuCtxAttach(&same, 0));
  step("allocate", cuMemAlloc_v2(&a, 6 * MIB));
  step("destroy", cuCtxDestroy_v2(other));
  step("current", cuCtxSetCurrent(primary));
  step("detach the primary", cuCtxDetach(primary));
}

/* --- code: counts from the moment it is loaded, wherever the driver has it --- */

static void launch(CUmodule module, const char *name) {
  CUfunction function;
  step("function", cuModuleGetFunction(&function, module, name));
  step("launch", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

void code(void) {
  static char one[3 * MIB] = ".version 8.0\n.global .b8 table[1000];\n.entry plain() { ret; }\n";
  static char two[] = ".version 8.0\n.entry other() { ret; }\n";
  CUmodule first, linked;
  CUlinkState state;
  CUdeviceptr table;
  CUlibrary library;
  size_t size;
  void *cubin = NULL;
  memset(one + strlen(one), '\n', sizeof(one) - strlen(one) - 1);
  begin();
  step("load", cuModuleLoadData(&first, one));
  step("variable", cuModuleGetGlobal_v2(&table, &size, first, "table"));
  step("its size", size != 1000);
  step("write", cuMemsetD8_v2(table, 7, size));
  step("free a variable", cuMemFree_v2(table));
  launch(first, "plain");
  step("link", cuLinkCreate_v2(0, NULL, NULL, &state));
  step("add", cuLinkAddData_v2(state, 1, one, sizeof(one), "one", 0, NULL, NULL));
  step("add", cuLinkAddData_v2(state, 1, two, sizeof(two), "two", 0, NULL, NULL));
  step("complete", cuLinkComplete(state, &cubin, &size));
  step("load", cuModuleLoadDataEx(&linked, cubin, 0, NULL, NULL));
  step("load a library", cuLibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
  step("destroy", cuLinkDestroy(state));
  launch(linked, "other");
  step("unload", cuModuleUnload(first));
  step("unload twice", cuModuleUnload(first));
  step("unload the library", cuLibraryUnload(library));
  step("unload", cuModuleUnload(linked));
}
