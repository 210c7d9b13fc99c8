/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of cuMemCreate: it ends when its handles, its mappings, its bindings to multicast objects
 * and the descriptors that it was exported to are all gone.
 *
 * Any thread; the one mutex is never held across a driver call.
 */
#ifndef ALIQUOT_VMM_H
#define ALIQUOT_VMM_H

#include "abi.h"
#include "books.h"
#include "hot.h"

/* The driver gave a handle. False: no memory for a record. */
bool aq_vmm_created(const struct aq_charge *charge, CUmemGenericAllocationHandle handle);
/* ... of a multicast object, which has no memory, and keeps what is bound to it. */
bool aq_vmm_multicast_created(CUmemGenericAllocationHandle handle);

/* A handle is about to be released: as aq_free_begin and aq_free_end. */
bool aq_vmm_release_begin(CUmemGenericAllocationHandle handle, struct aq_freed *freed);
void aq_vmm_release_end(const struct aq_freed *freed, bool done);

/* The memory of a handle, or around a mapped address, has one more holder: its number. 0: not
 * ours. False: no memory for a record. */
bool aq_vmm_hold(CUmemGenericAllocationHandle handle, uint32_t *number);
uint32_t aq_vmm_hold_mapped(CUdeviceptr address);
/* One holder less; 0: nothing. */
void aq_vmm_drop(uint32_t number);

/* A further handle of memory that has been held for it. */
void aq_vmm_add_handle(CUmemGenericAllocationHandle handle, uint32_t number);
/* A handle that was there already was given again. False: it was not there. */
bool aq_vmm_repeat_handle(CUmemGenericAllocationHandle handle);

/* Memory `number` was mapped. False: no memory for a record. */
bool aq_vmm_mapped(CUdeviceptr address, size_t bytes, uint32_t number);
/* A range is about to be unmapped: takes its mappings out. To aq_vmm_unmap_end, whatever comes. */
struct aq_unmapped {
  struct aq_record *records;
  size_t count;
  size_t mapped_bytes; /* of `records`, if they did not fit into `few` */
  struct aq_record few[16];
};
void aq_vmm_unmap_begin(CUdeviceptr address, size_t bytes, struct aq_unmapped *unmapped);
void aq_vmm_unmap_end(struct aq_unmapped *unmapped, bool done);

/* Memory `number` was bound to a multicast object. */
void aq_vmm_bound(CUmemGenericAllocationHandle multicast, size_t offset, uint32_t number);
/* As aq_free_begin; the end of it is aq_vmm_unbind_end. */
bool aq_vmm_unbind_begin(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                         struct aq_freed *freed);
void aq_vmm_unbind_end(const struct aq_freed *freed, bool done);

/* A handle was exported to a descriptor. */
void aq_vmm_exported(CUmemGenericAllocationHandle handle, int fd);
/* The memory that this process exported to `fd`, held once more; 0: none. */
uint32_t aq_vmm_hold_exported(int fd);
/* Gives back memory whose descriptors have been closed since. */
AQ_RARE void aq_vmm_settle_exports(void);

/* In a forked child. */
void aq_vmm_reset(void);

#endif
