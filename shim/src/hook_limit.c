/* SPDX-License-Identifier: Apache-2.0
 *
 * Context limits: stacks, heaps and FIFOs are device memory. What a limit costs beyond its first
 * value is charged until its context ends. The driver may change a value: it is asked afterwards.
 *
 * A stack stands ready for each thread that can be resident. The CUDA programming guide tells up
 * to 150 MiB per level of synchronising grids, and no number for pending launches; both are
 * measured in the end.
 */
#include <pthread.h>

#include "books.h"
#include "hooks.h"
#include "state.h"

#define PAGE       (2ULL << 20)
#define PER_LEVEL  (150ULL << 20)
#define PER_LAUNCH 1024ULL

static uint64_t attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  if (!AQ_REAL(cuDeviceGetAttribute) || AQ_REAL(cuDeviceGetAttribute)(&value, which, device) != CUDA_SUCCESS)
    return 0;
  return (uint64_t)value;
}

/* What one unit of a limit costs; 0: nothing, or it is not known. */
static uint64_t unit_cost(CUlimit limit, CUdevice device) {
  uint64_t processors = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  switch (limit) {
  case CU_LIMIT_STACK_SIZE:
    return processors * attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  case CU_LIMIT_PRINTF_FIFO_SIZE:
  case CU_LIMIT_MALLOC_HEAP_SIZE:
    return 1;
  case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    return PER_LEVEL;
  case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    return PER_LAUNCH;
  case CU_LIMIT_PER_BLOCK_MEMORY_SIZE:
    return processors * attribute(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  default:
    return 0;
  }
}

static uint64_t cost(uint64_t unit, uint64_t value, uint64_t first) {
  uint64_t bytes;
  if (value <= first)
    return 0;
  if (__builtin_mul_overflow(value - first, unit, &bytes) || bytes > UINT64_MAX - PAGE)
    return UINT64_MAX;
  return (bytes + PAGE - 1) & ~(PAGE - 1);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* never held across a driver call */
static uint64_t changes;                                  /* sets that the driver has answered */

static uint64_t changes_now(void) {
  return __atomic_load_n(&changes, __ATOMIC_SEQ_CST);
}

/* Under the mutex: the record of a limit; made at its first change, with the value that it had. */
static bool find(const struct aq_here *here, CUlimit limit, size_t first, struct aq_record *record) {
  uint64_t key = ((uint64_t)(uintptr_t)here->context << 4) + (unsigned)limit;
  if (aq_records_find(AQ_LIMIT, key, record))
    return true;
  *record = (struct aq_record){.thing = AQ_LIMIT,
                               .key = key,
                               .context = here->context,
                               .number = first < UINT32_MAX ? (uint32_t)first : UINT32_MAX,
                               .share = (uint8_t)here->share->index};
  return aq_note(record);
}

/* Under the mutex: the record's bytes become `bytes`, at first from what was announced. False: the driver
 * made more of it than was announced, and there is no room for that. */
static bool enter(struct aq_charge *announced, uint64_t key, uint64_t bytes, bool alone) {
  struct aq_record record;
  struct aq_charge part = *announced;
  struct aq_charge more;
  if (!aq_records_find(AQ_LIMIT, key, &record)) /* its context has ended */
    return true;
  if (bytes <= record.bytes) {
    aq_give_from(announced->share, AQ_LIMIT, key, record.bytes - bytes);
    return true;
  }
  uint64_t grown = bytes - record.bytes;
  part.bytes = grown < announced->bytes ? grown : announced->bytes;
  if (grown > part.bytes) {
    if (!alone) /* the others' announcements stand until they have settled */
      aq_force(announced->share, grown - part.bytes, &more);
    else if (!aq_reserve_at_once(announced->share, grown - part.bytes, &more))
      return false;
    aq_charge_into(&more, AQ_LIMIT, key);
  }
  announced->bytes -= part.bytes;
  aq_charge_into(&part, AQ_LIMIT, key);
  return true;
}

/* Enters what the driver has made of `value`. A reading counts only if no set has ended meanwhile: those of
 * other threads may come in any order. */
static bool settle(struct aq_charge *announced, const struct aq_record *record, uint64_t unit, CUlimit limit,
                   size_t value, uint64_t begun) {
  bool fits = true;
  for (bool current = false; !current;) {
    size_t now = value;
    uint64_t seen = changes_now();
    if (AQ_REAL(cuCtxGetLimit)(&now, limit) != CUDA_SUCCESS)
      now = value;
    pthread_mutex_lock(&mutex);
    current = seen == changes_now();
    if (current)
      fits = enter(announced, record->key, cost(unit, now, record->number), seen == begun + 1);
    pthread_mutex_unlock(&mutex);
  }
  aq_cancel(announced);
  announced->bytes = 0;
  return fits;
}

static CUresult ask_driver(CUlimit limit, size_t value) {
  CUresult result = AQ_REAL(cuCtxSetLimit)(limit, value);
  __atomic_add_fetch(&changes, 1, __ATOMIC_SEQ_CST);
  return result;
}

static CUresult set(const struct aq_here *here, CUlimit limit, size_t value, size_t before, uint64_t unit) {
  struct aq_record record;
  struct aq_charge charge;
  uint64_t begun = changes_now();
  pthread_mutex_lock(&mutex);
  bool found = find(here, limit, before, &record);
  pthread_mutex_unlock(&mutex);
  if (!found)
    return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t wanted = cost(unit, value, record.number);
  if (!aq_reserve(here->share, wanted > record.bytes ? wanted - record.bytes : 0, &charge))
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = ask_driver(limit, value);
  if (result != CUDA_SUCCESS) {
    aq_cancel(&charge);
    return result;
  }
  if (settle(&charge, &record, unit, limit, value, begun))
    return CUDA_SUCCESS;
  ask_driver(limit, before);
  settle(&charge, &record, unit, limit, before, UINT64_MAX);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool takes_no_memory(CUlimit limit) {
  return limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY || limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  struct aq_here here;
  size_t before = 0;
  CUdevice device;
  if (!AQ_REAL(cuCtxSetLimit) || !AQ_REAL(cuCtxGetLimit) || !AQ_REAL(cuCtxGetDevice))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_depth > 0 || takes_no_memory(limit))
    return AQ_REAL(cuCtxSetLimit)(limit, value);
  CUresult result = aq_here(&here);
  if (result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_INITIALIZED)
    return result;
  /* What cannot be read cannot be set: the driver says why. */
  if (result != CUDA_SUCCESS || AQ_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
      AQ_REAL(cuCtxGetLimit)(&before, limit) != CUDA_SUCCESS)
    return AQ_REAL(cuCtxSetLimit)(limit, value);
  uint64_t unit = unit_cost(limit, device);
  if (unit == 0 && value > before && aq_share_is_limited(here.share))
    return CUDA_ERROR_UNSUPPORTED_LIMIT; /* nobody knows what it costs */
  return set(&here, limit, value, before, unit);
}
