/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of `state`, the one file in which a simulated node keeps its GPUs'
 * books. All processes of the node map it; every count in it is either one
 * meter (meter.h) or has a single writer.
 *
 * A slot belongs to the process that holds two locks on the file: a POSIX
 * record lock on byte SLOT, which readers also translate into a pid of their
 * own namespace, and an OFD lock on byte SIM_OFD_BASE + SLOT, which hangs on
 * the mapping and therefore outlives a program that closes all descriptors.
 */
#ifndef SIM_LAYOUT_H
#define SIM_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#include "schedule_layout.h"

#define SIM_MAGIC     0x314d495351494c41ULL /* "ALIQSIM1" */
#define SIM_LAYOUT    7U
#define SIM_GPUS      16U
#define SIM_SLOTS     2048U /* slot 0 stands for nobody */
#define SIM_GROUPS    512U  /* group 0 stands for none */
#define SIM_NAME      64U
#define SIM_PAGE      (2ULL << 20)
#define SIM_OFD_BASE  (1LL << 40)
#define SIM_MPS_LANES 64U
#define SIM_SLICES    7U   /* of compute, in a GPU that can be partitioned; mig.h */
#define SIM_EVENTS    256U /* remembered of all that happened; events.h */

/* What a process holds of a GPU is counted twice: the GPU's pages that it takes
 * (contexts included, allocations rounded up and packed) and the bytes that it
 * asked for (allocations only). */
enum sim_measure { SIM_PHYSICAL, SIM_REQUESTED, SIM_MEASURES };

/* The three meters that one operation of a process moves. */
enum sim_which { SIM_GPU_PHYSICAL, SIM_GROUP_PHYSICAL, SIM_GROUP_REQUESTED, SIM_METERS };

/* used, peak, owner and sequence number of the last writer in one atomic word: meter.h. */
struct sim_meter {
  _Alignas(16) volatile uint64_t half[2];
};

/* What is wrong with a GPU. Made by `aliquot-sim inject`, seen by all. */
struct sim_faults {
  _Atomic uint32_t lost;      /* fallen off the bus */
  _Atomic uint32_t throttled; /* NVML's clocks event reasons, beyond idle */
  _Atomic uint64_t ecc;       /* uncorrected errors since the last recovery */
  _Atomic uint64_t ecc_ever;
  _Atomic uint32_t last_xid;
  _Atomic uint32_t needs_reset; /* after an XID that only a reset ends */
  _Atomic uint32_t slow_us;     /* how much longer each call of the driver takes */
  _Atomic uint64_t oom;         /* how many more requests for memory are refused */
};

struct sim_gpu {
  uint8_t uuid[16];
  uint32_t profile; /* index into sim_profiles */
  uint32_t pci_bus; /* domain 0, device 0, function 0 */
  int32_t numa_node;
  uint32_t minor;
  uint64_t context_bytes;
  _Atomic uint32_t compute_mode; /* NVML's */
  _Atomic uint64_t mig;          /* MIG mode and all instances: mig.c */
  struct sim_faults faults;
  _Alignas(64) struct sim_meter used; /* bytes, whole pages */
};

struct sim_group {
  _Atomic uint64_t key; /* hash of the name; 0 = free; lowest bit set = being emptied */
  char name[SIM_NAME];
  char host[SIM_NAME]; /* host name (in a pod: the pod's) of the process that made it */
  _Alignas(64) struct {
    _Alignas(64) struct sim_meter measure[SIM_MEASURES];
  } gpu[SIM_GPUS];
};

/* An operation: what the slot held before and what it holds once each meter has moved. */
struct sim_change {
  uint64_t before[SIM_MEASURES];
  uint64_t after[SIM_MEASURES];
};

struct sim_holding {
  _Atomic uint64_t seq; /* number of the operation begun last: change[seq & 1] */
  struct sim_change change[2];
  _Atomic uint32_t done[SIM_METERS]; /* highest number known to have moved the meter, see meter.c */
  _Atomic uint32_t contexts;
  _Atomic uint64_t peak[SIM_MEASURES];
};

/* What a slot stands for: a process, or memory that may outlive the process that made it (shared.h). */
enum sim_kind { SIM_PROCESS, SIM_SHARED_MEMORY, SIM_SHARED_POOL };

struct sim_shared {
  uint32_t kind;       /* enum sim_kind */
  uint32_t owner;      /* slot of the process that made it */
  uint64_t owner_life; /* and its life */
  uint32_t gpu;
  uint32_t flags; /* of the kind */
  uint64_t size;
};

struct sim_slot {
  _Atomic uint64_t life;       /* odd = taken, even = free; +1 with each change */
  _Atomic uint32_t kind;       /* enum sim_kind */
  _Atomic uint32_t has_shared; /* a process that made shared memory */
  struct sim_shared shared;
  _Atomic uint32_t group;
  _Atomic uint32_t part;           /* the one MIG device that it uses (mig.h); 0 = whole GPUs */
  _Atomic uint32_t descriptorless; /* its program closed our descriptor: the OFD lock alone decides */
  uint64_t pid;                    /* in its own pid namespace */
  uint64_t pidns_inode;
  uint64_t exec_id;
  char command[16];
  _Alignas(64) struct sim_holding holding[SIM_GPUS];
};

/* Of a slot that has to do with MPS (mps.h). */
struct sim_mps {
  _Atomic uint32_t server; /* of a client: its server's slot, 0 = none; of a server: its own slot */
  _Atomic uint32_t fault;  /* of a server: the error that its clients get; 0 = none */
  _Atomic uint32_t
      lane; /* of a client with a part of the SMs, or on a MIG device: its schedule; 0 = the GPU's */
  _Atomic uint64_t server_life;
};

struct sim_state {
  uint64_t magic;
  uint32_t layout;
  uint32_t gpus;
  uint64_t size;
  char node[SIM_NAME];
  uint32_t driver;    /* index into sim_drivers */
  uint32_t in_fabric; /* the GPUs' NVLinks lead to other nodes */
  uint8_t fabric_uuid[16];
  uint32_t fabric_clique;
  _Atomic uint32_t nvml_lag_ms;             /* how old utilisation is when NVML tells it, beside its period */
  _Atomic uint32_t nvml_step;               /* percent: utilisation comes in such steps */
  _Atomic uint32_t nvml_exact;              /* up to the moment, not by whole periods */
  _Alignas(64) _Atomic uint32_t slots_used; /* highest slot ever taken; only grows */
  _Atomic uint32_t serial;                  /* gives a meter without owner a value that was never there */
  _Atomic uint32_t janitor;                 /* where the next newcomer looks for dead processes */
  _Atomic uint32_t events;                  /* how many there have been; a futex */
  _Atomic uint64_t event[SIM_EVENTS];
  _Alignas(64) struct sim_gpu gpu[SIM_GPUS];
  struct sim_group group[SIM_GROUPS];
  struct sim_slot slot[SIM_SLOTS];
  /* Of GPUs; then of MPS clients with a part of the SMs; then of MIG devices, by GPU and first slice. */
  struct sim_schedule schedule[SIM_GPUS + SIM_MPS_LANES + SIM_GPUS * SIM_SLICES];
  struct sim_pace pace[SIM_SLOTS][SIM_GPUS];
  _Atomic uint64_t mps_lane[SIM_MPS_LANES]; /* owner's slot | its life */
  struct sim_mps mps[SIM_SLOTS];
  struct {
    _Alignas(64) struct sim_meter used; /* bytes, whole pages */
  } instance[SIM_GPUS][SIM_SLICES];     /* GPU instances, by their first memory slice */
};

#endif
