/* SPDX-License-Identifier: Apache-2.0
 *
 * Attaches the process to its shares at cuInit or nvmlInit, and lets go in a forked child.
 */
#include "state.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "books.h"
#include "capture.h"
#include "contexts.h"
#include "graphs.h"
#include "hooks.h"
#include "leaving.h"
#include "log.h"
#include "nvml_share.h"
#include "pools.h"
#include "records.h"
#include "slot.h"
#include "turn.h"
#include "vmm.h"

struct aq_share aq_shares[AQ_MAX_SHARES];

static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t share_count;
static struct aq_share *device_shares[AQ_MAX_DEVICES];
static int device_count;
static bool ready;

static void before_fork(void) {
  pthread_mutex_lock(&attach_lock);
  aq_slot_lock();
}

static void after_fork_in_parent(void) {
  aq_slot_unlock();
  pthread_mutex_unlock(&attach_lock);
}

/* The child shares the lock's file description: it closes its descriptor and never unlocks.
 * CUDA does not work in a child of an initialised process; the driver says so itself. */
static void after_fork_in_child(void) {
  int saved = errno;
  __atomic_store_n(&ready, false, __ATOMIC_RELEASE);
  memset(device_shares, 0, sizeof(device_shares));
  device_count = 0;
  aq_shares_unmap(aq_shares, share_count);
  share_count = 0;
  aq_records_reset();
  aq_contexts_reset();
  aq_pools_reset();
  aq_captures_reset();
  aq_leaving_reset();
  aq_turns_reset();
  aq_vmm_reset();
  aq_graphs_reset();
  aq_nvml_share_reset_in_child();
  aq_slot_reset_lock();
  attach_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  aq_depth = 0;
  errno = saved;
}

static void reclaim(struct aq_share *share) {
  aq_vmm_settle_exports();
  aq_leaving_settle();
  aq_pools_reclaim(share);
}

static bool attach(void) {
  static bool fork_handled; /* handlers are inherited */
  if (share_count > 0)
    return true;
  if (!fork_handled)
    fork_handled = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  aq_reclaim = reclaim;
  if (fork_handled)
    share_count = aq_shares_map(aq_shares);
  return share_count > 0;
}

bool aq_attach(void) {
  int saved = errno;
  pthread_mutex_lock(&attach_lock);
  bool attached = attach();
  pthread_mutex_unlock(&attach_lock);
  errno = saved;
  return attached;
}

bool aq_attach_with_slots(void) {
  int saved = errno;
  pthread_mutex_lock(&attach_lock);
  bool attached = attach();
  for (size_t i = 0; attached && i < share_count; i++) {
    attached = aq_slot_claim(&aq_shares[i]);
    if (!attached)
      aq_log_by(aq_shares[i].quota, aq_shares[i].name, "ledger: no slot to be had, or no locks on it");
  }
  pthread_mutex_unlock(&attach_lock);
  errno = saved;
  return attached;
}

struct aq_share *aq_share_of_uuid(const uint8_t uuid[16]) {
  for (size_t i = 0; i < share_count; i++)
    if (!memcmp(aq_shares[i].quota->gpu_uuid, uuid, 16))
      return &aq_shares[i];
  return NULL;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device) {
  if (AQ_REAL(cuDeviceGetUuid_v2)) /* names a MIG instance, too */
    return AQ_REAL(cuDeviceGetUuid_v2)(uuid, device);
  return AQ_REAL(cuDeviceGetUuid) ? AQ_REAL(cuDeviceGetUuid)(uuid, device) : CUDA_ERROR_NOT_FOUND;
}

void aq_devices_bind(void) {
  struct aq_share *found[AQ_MAX_DEVICES] = {NULL};
  int count = 0;
  if (aq_is_ready() || !AQ_REAL(cuDeviceGetCount))
    return;
  aq_depth++;
  CUresult counted = AQ_REAL(cuDeviceGetCount)(&count);
  for (int device = 0; device < count && device < AQ_MAX_DEVICES; device++) {
    CUuuid uuid;
    if (device_uuid(&uuid, device) == CUDA_SUCCESS)
      found[device] = aq_share_of_uuid((const uint8_t *)uuid.bytes);
    if (!found[device])
      aq_log_by(aq_shares[0].quota, "a GPU in sight", "no share has its UUID: its contexts are refused");
  }
  aq_depth--;
  if (counted != CUDA_SUCCESS)
    return;
  if (count > AQ_MAX_DEVICES)
    count = AQ_MAX_DEVICES; /* the rest does not exist for this process */
  pthread_mutex_lock(&attach_lock);
  if (!ready) {
    memcpy(device_shares, found, sizeof(found));
    device_count = count;
    __atomic_store_n(&ready, true, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&attach_lock);
}

bool aq_is_ready(void) {
  return __atomic_load_n(&ready, __ATOMIC_ACQUIRE);
}

bool aq_device_exists(CUdevice device) {
  return device >= 0 && device < device_count;
}

struct aq_share *aq_device_share(CUdevice device) {
  return aq_device_exists(device) ? device_shares[device] : NULL;
}

CUdevice aq_location_device(const CUmemLocation *location) {
  switch (location->type) {
  case CU_MEM_LOCATION_TYPE_NONE:
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
  case CU_MEM_LOCATION_TYPE_INVISIBLE:
    return -1;
  case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
    return location->id & 0xff;
  default:
    return location->id;
  }
}

CUdevice aq_sole_device(void) {
  return device_count == 1 ? 0 : -1;
}

bool aq_all_unlimited(void) {
  for (int device = 0; device < device_count; device++)
    if (!device_shares[device] || aq_share_is_limited(device_shares[device]))
      return false;
  return device_count > 0;
}

AQ_RARE static CUresult ask_driver(struct aq_here *here) {
  CUdevice device = 0;
  if (!AQ_REAL(cuCtxGetDevice) || !AQ_REAL(cuCtxGetCurrent))
    return CUDA_ERROR_NOT_PERMITTED;
  CUresult result = AQ_REAL(cuCtxGetDevice)(&device);
  if (result == CUDA_SUCCESS)
    result = AQ_REAL(cuCtxGetCurrent)(&here->context);
  if (result != CUDA_SUCCESS)
    return result;
  here->context = aq_contexts_owner(here->context);
  here->share = aq_device_share(device);
  return here->share ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
}

CUresult aq_here(struct aq_here *here) {
  if (!aq_is_ready())
    return CUDA_ERROR_NOT_INITIALIZED;
  here->context = aq_contexts_sole();
  here->share = device_shares[0];
  return here->context && here->share && device_count == 1 ? CUDA_SUCCESS : ask_driver(here);
}
