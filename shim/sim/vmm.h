/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory management: memory without addresses, addresses without
 * memory, and mappings between them. Memory ends when its handle has been
 * released as often as it was taken, no mapping or binding is left, and (for
 * exportable memory) no other process or descriptor refers to it. All want the
 * driver's lock held.
 *
 * cuMemGetAllocationGranularity was seen to answer 2 MiB on all GPUs that have
 * profiles here, minimum and recommended.
 */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "memory.h"
#include "shared.h"

#define VMM_GRAIN SIM_PAGE

enum vmm_kind { VMM_DEVICE, VMM_HOST, VMM_MULTICAST };

struct vmm_binding;

/* What a CUmemGenericAllocationHandle stands for. */
struct vmm_memory {
  uint32_t index;
  uint32_t generation; /* of the index: a stale handle is seen as such */
  bool live;
  uint32_t references; /* of the handle */
  uint32_t uses;       /* mappings, and bindings to multicast objects */
  enum vmm_kind kind;
  size_t size;
  uint32_t gpu;
  uint64_t id;
  CUmemAllocationProp prop;
  struct shared shared; /* of exportable and imported memory */
  struct vmm_memory *next_free;
  struct {
    unsigned devices; /* how many there may be */
    uint32_t added;   /* bit per device */
    struct vmm_binding *bindings;
  } multicast;
};

/* An empty record with one reference; NULL: no host memory. */
struct vmm_memory *vmm_new(void);

/* The memory of a handle; NULL: there is none, or it has been released as often as taken. */
struct vmm_memory *vmm_find(CUmemGenericAllocationHandle handle);
CUmemGenericAllocationHandle vmm_handle(const struct vmm_memory *memory);

/* End the memory if nothing refers to it any more. */
void vmm_settle(struct vmm_memory *memory);

/* Check properties of memory, and make the location a plain one. */
CUresult vmm_check(CUmemAllocationProp *prop);

/* A stretch of a range that is mapped. */
struct vmm_mapping {
  uintptr_t address;
  size_t size;
  size_t offset;
  struct vmm_memory *memory;
  uint32_t readable; /* bit per device; VMM_HOST_BIT */
  uint32_t writable;
  bool host; /* backed for the host to use */
  enum space_backing backing;
  struct vmm_mapping *next_free;
};

#define VMM_HOST_BIT (1U << 31)

/* The mapping around an address in a block of kind SPACE_RANGE, or NULL. */
struct vmm_mapping *vmm_mapping_at(const struct space_block *block, uintptr_t address);

/* The whole range that the block was reserved for. */
void vmm_range_of(const struct space_block *block, uintptr_t *start, size_t *size);

/* Unbind all that is bound to a multicast object. */
void multicast_clear(struct vmm_memory *object);

#endif
