/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that only its first handle holds is one AQ_HANDLE record, which carries the bytes. When
 * it gets a second holder it becomes an AQ_MEMORY record with a number and a count of holders.
 */
#include "vmm.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "state.h"

enum { MOST_HOLDERS = UINT16_MAX, MOST_EXPORTS = 256 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint32_t numbers;

static struct export {
  int fd;
  uint32_t number;
  dev_t device;
  ino_t inode;
} exports[MOST_EXPORTS];
static size_t export_count;

/* What bindings to multicast object `number` belong to; no context has such a handle. */
static CUcontext binder(uint32_t number) {
  return (CUcontext)(((uintptr_t)number << 2) | 2);
}

bool aq_vmm_created(const struct aq_charge *charge, CUmemGenericAllocationHandle handle) {
  return aq_commit(charge, &(struct aq_record){.thing = AQ_HANDLE, .key = handle, .count = 1});
}

static uint32_t next_number(void) {
  return __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
}

bool aq_vmm_multicast_created(CUmemGenericAllocationHandle handle) {
  uint32_t number = next_number();
  return aq_note(&(struct aq_record){.thing = AQ_MEMORY, .key = number, .count = 1}) &&
         aq_note(&(struct aq_record){.thing = AQ_HANDLE, .key = handle, .number = number, .count = 1});
}

/* --- holders; under the mutex --- */

static bool change_holders(uint32_t number, int count, struct aq_record *memory) {
  uint64_t generation;
  return aq_records_change(aq_shares, AQ_MEMORY, number, 0, count, memory, &generation);
}

static bool hold(uint32_t number) {
  struct aq_record memory;
  return aq_records_find(AQ_MEMORY, number, &memory) && memory.count < MOST_HOLDERS &&
         change_holders(number, 1, &memory);
}

/* The bytes move from the handle to the memory. False: no memory for a record. */
static bool promote(CUmemGenericAllocationHandle handle, uint32_t *number) {
  struct aq_freed freed;
  if (!aq_free_begin(AQ_HANDLE, handle, &freed))
    return false;
  struct aq_record memory = {.thing = AQ_MEMORY, .key = next_number(), .count = freed.record.count};
  struct aq_charge charge = {&aq_shares[freed.record.share], freed.generation, freed.record.bytes};
  if (!aq_commit(&charge, &memory)) {
    aq_free_end(&freed, false);
    return false;
  }
  freed.record.bytes = 0;
  freed.record.number = *number = (uint32_t)memory.key;
  return aq_note(&freed.record);
}

static void drop(uint32_t number) {
  struct aq_record memory;
  struct aq_record binding;
  struct aq_freed freed;
  if (number == 0 || !change_holders(number, -1, &memory) || memory.count > 0)
    return;
  if (aq_free_begin(AQ_MEMORY, number, &freed))
    aq_free_end(&freed, true);
  if (memory.bytes > 0)
    return;
  while (aq_records_find_of(AQ_BINDING, binder(number), &binding)) /* it was a multicast object */
    if (aq_free_begin(AQ_BINDING, binding.key, &freed))
      drop(freed.record.number);
}

bool aq_vmm_hold(CUmemGenericAllocationHandle handle, uint32_t *number) {
  struct aq_record record;
  *number = 0;
  pthread_mutex_lock(&mutex);
  bool held = true;
  if (aq_records_find(AQ_HANDLE, handle, &record)) {
    *number = record.number;
    held = (record.number || promote(handle, number)) && hold(*number);
  }
  pthread_mutex_unlock(&mutex);
  return held;
}

uint32_t aq_vmm_hold_mapped(CUdeviceptr address) {
  struct aq_record mapping;
  uint32_t number = 0;
  pthread_mutex_lock(&mutex);
  if (aq_records_find_around(AQ_MAPPING, address, &mapping) && mapping.number && hold(mapping.number))
    number = mapping.number;
  pthread_mutex_unlock(&mutex);
  return number;
}

void aq_vmm_drop(uint32_t number) {
  if (number == 0)
    return;
  pthread_mutex_lock(&mutex);
  drop(number);
  pthread_mutex_unlock(&mutex);
}

/* --- handles --- */

/* The handle's value stays valid while it has other references, and others may use it meanwhile. */
bool aq_vmm_release_begin(CUmemGenericAllocationHandle handle, struct aq_freed *freed) {
  return aq_records_let_go(aq_shares, AQ_HANDLE, handle, &freed->record, &freed->generation);
}

AQ_RARE static void keep_reference(CUmemGenericAllocationHandle handle) {
  struct aq_record record;
  uint64_t generation;
  aq_records_change(aq_shares, AQ_HANDLE, handle, 0, 1, &record, &generation);
}

void aq_vmm_release_end(const struct aq_freed *freed, bool done) {
  const struct aq_record *record = &freed->record;
  if (!done && record->count > 1)
    keep_reference(record->key);
  else if (!done || (record->number == 0 && record->count == 1))
    aq_free_end(freed, done);
  else
    aq_vmm_drop(record->number);
  if (done && record->number)
    aq_vmm_settle_exports();
}

bool aq_vmm_repeat_handle(CUmemGenericAllocationHandle handle) {
  struct aq_record record;
  uint64_t generation;
  pthread_mutex_lock(&mutex);
  bool found = aq_records_change(aq_shares, AQ_HANDLE, handle, 0, 1, &record, &generation);
  if (found && record.number)
    hold(record.number);
  pthread_mutex_unlock(&mutex);
  return found;
}

void aq_vmm_add_handle(CUmemGenericAllocationHandle handle, uint32_t number) {
  struct aq_record record;
  uint64_t generation;
  pthread_mutex_lock(&mutex);
  if (!aq_records_change(aq_shares, AQ_HANDLE, handle, 0, 1, &record, &generation))
    aq_note(&(struct aq_record){.thing = AQ_HANDLE, .key = handle, .number = number, .count = 1});
  pthread_mutex_unlock(&mutex);
}

/* --- mappings --- */

bool aq_vmm_mapped(CUdeviceptr address, size_t bytes, uint32_t number) {
  return aq_note(&(struct aq_record){.thing = AQ_MAPPING, .key = address, .bytes = bytes, .number = number});
}

static size_t count_mappings(CUdeviceptr address, size_t bytes) {
  struct aq_record mapping;
  size_t count = 0;
  for (size_t done = 0; done < bytes && aq_records_find(AQ_MAPPING, address + done, &mapping); count++)
    done += mapping.bytes;
  return count;
}

void aq_vmm_unmap_begin(CUdeviceptr address, size_t bytes, struct aq_unmapped *unmapped) {
  struct aq_freed freed;
  size_t count = count_mappings(address, bytes);
  *unmapped = (struct aq_unmapped){.records = unmapped->few};
  if (count > sizeof(unmapped->few) / sizeof(unmapped->few[0])) {
    unmapped->mapped_bytes = count * sizeof(struct aq_record);
    unmapped->records =
        mmap(NULL, unmapped->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (unmapped->records == MAP_FAILED) { /* they stay charged */
      *unmapped = (struct aq_unmapped){.records = unmapped->few};
      return;
    }
  }
  for (size_t done = 0; done < bytes && unmapped->count < count; unmapped->count++) {
    if (!aq_free_begin(AQ_MAPPING, address + done, &freed))
      break;
    unmapped->records[unmapped->count] = freed.record;
    done += freed.record.bytes;
  }
}

void aq_vmm_unmap_end(struct aq_unmapped *unmapped, bool done) {
  for (size_t i = 0; i < unmapped->count; i++) {
    if (done)
      aq_vmm_drop(unmapped->records[i].number);
    else
      aq_note(&unmapped->records[i]);
  }
  if (unmapped->mapped_bytes)
    munmap(unmapped->records, unmapped->mapped_bytes);
  aq_vmm_settle_exports();
}

/* --- bindings to multicast objects --- */

/* Bindings of several devices may have one offset. Two that meet in 64 bits would be one: the
 * memory of the other stays charged. */
static uint64_t binding_key(uint32_t multicast, unsigned share, size_t offset) {
  return (offset * 0x9e3779b97f4a7c15ULL ^ ((uint64_t)multicast << 32 | (share + 1))) | 1;
}

void aq_vmm_bound(CUmemGenericAllocationHandle multicast, size_t offset, uint32_t number) {
  struct aq_record handle;
  struct aq_record memory;
  if (!aq_records_find(AQ_HANDLE, multicast, &handle) || !aq_records_find(AQ_MEMORY, number, &memory))
    return; /* a multicast object of another process: the memory stays charged */
  aq_note(&(struct aq_record){.thing = AQ_BINDING,
                              .key = binding_key(handle.number, memory.share, offset),
                              .context = binder(handle.number),
                              .number = number});
}

bool aq_vmm_unbind_begin(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                         struct aq_freed *freed) {
  struct aq_record handle;
  const struct aq_share *share = aq_device_share(device);
  return share && aq_records_find(AQ_HANDLE, multicast, &handle) &&
         aq_free_begin(AQ_BINDING, binding_key(handle.number, share->index, offset), freed);
}

void aq_vmm_unbind_end(const struct aq_freed *freed, bool done) {
  if (done)
    aq_vmm_drop(freed->record.number);
  else
    aq_note(&freed->record);
}

/* --- exports --- */

static bool is_open(const struct export *export) {
  struct stat status;
  return fstat(export->fd, &status) == 0 && status.st_dev == export->device && status.st_ino == export->inode;
}

/* The descriptor is a holder until it is found closed. More than we can watch are not. */
void aq_vmm_exported(CUmemGenericAllocationHandle handle, int fd) {
  struct stat status;
  uint32_t number;
  aq_vmm_settle_exports();
  if (!aq_vmm_hold(handle, &number) || number == 0)
    return;
  pthread_mutex_lock(&mutex);
  bool watched = export_count < MOST_EXPORTS && fstat(fd, &status) == 0;
  if (watched)
    exports[export_count++] = (struct export){fd, number, status.st_dev, status.st_ino};
  else
    drop(number);
  pthread_mutex_unlock(&mutex);
}

uint32_t aq_vmm_hold_exported(int fd) {
  uint32_t number = 0;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < export_count && !number; i++)
    if (exports[i].fd == fd && is_open(&exports[i]) && hold(exports[i].number))
      number = exports[i].number;
  pthread_mutex_unlock(&mutex);
  return number;
}

void aq_vmm_settle_exports(void) {
  if (__atomic_load_n(&export_count, __ATOMIC_ACQUIRE) == 0)
    return;
  int saved = errno;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < export_count;) {
    if (is_open(&exports[i])) {
      i++;
      continue;
    }
    uint32_t number = exports[i].number;
    exports[i] = exports[--export_count];
    drop(number);
  }
  pthread_mutex_unlock(&mutex);
  errno = saved;
}

void aq_vmm_reset(void) {
  numbers = 0;
  export_count = 0;
  mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}
