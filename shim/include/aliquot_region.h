/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of `quota` and `ledger`, the two files of a share: the one place that
 * knows it. node-agent/aliquot_agent/region.py mirrors it, held to it by
 * tests/contract.
 *
 * quota   one page, written by the node agent, read-only in the container; the
 *         only authority on limits.
 * ledger  fixed size, writable by the container: what its processes use. Sums are
 *         taken over slots; there is no shared total that a crash could spoil.
 *
 * Both are made once (quota complete before its name appears), then changed in place, word by
 * word: each 64-bit word is valid by itself, native byte order. Sizes and
 * offsets are compiled in; the headers are only compared, never computed with.
 *
 * Agents meet libraries of other releases, older and newer ones. So new words come out of what is
 * reserved, 0 is "not given" in them, and what an older library reads stays where it is and right.
 * AQ_LAYOUT goes up only where that cannot be had: then nothing is carried over, GPUs are refused.
 */
#ifndef ALIQUOT_REGION_H
#define ALIQUOT_REGION_H

#include <stdint.h>

#define AQ_SHARES_DIR "/run/aliquot/shares"

#define AQ_QUOTA_MAGIC        "ALIQUOTQ" /* 8 bytes, no terminator on disk */
#define AQ_LEDGER_MAGIC       "ALIQUOTL"
#define AQ_LAYOUT             1U
#define AQ_QUOTA_SIZE         4096U
#define AQ_LEDGER_HEADER_SIZE 4096U
#define AQ_SLOTS              1024U
#define AQ_SLOT_SIZE          128U
#define AQ_LOG_PATH           256U
#define AQ_LEDGER_SIZE        (AQ_LEDGER_HEADER_SIZE + AQ_SLOTS * AQ_SLOT_SIZE)

/* quota.flags */
#define AQ_FLAG_UNLIMITED 1ULL /* a whole GPU that stands beside a share */

/* slot.overhead_bytes before the agent has measured. What a slot counts beyond used_bytes:
 *   unknown:  contexts * context_estimate_bytes + code_bytes
 *   measured: overhead_bytes + max(0, contexts - measured_contexts) * context_estimate_bytes
 *             + max(0, code_bytes - measured_code_bytes)
 * so a context made, or code loaded, after the measurement counts its estimate until the next
 * one. The agent writes them in the order that never counts too little in between: those of
 * measured_contexts and measured_code_bytes that fall before overhead_bytes, those that rise after it. */
#define AQ_OVERHEAD_UNKNOWN UINT64_MAX

/* Compute shares. A launch that costs C ns of GPU time is let through when the share's budget has it:
 *   share = min(100 %, cores_millipercent + (lent_until_ns > now ? lent_millipercent : 0))
 *   0:     nothing is held or counted; none of the ledger's words for compute move
 *   100 %: nothing is held, all is counted
 *   else:  tat_ns := max(tat_ns, now) + C / share * cost_factor_ppm, not before tat_ns is near now
 * While anything is lent, a launch also waits until little of what was launched before has yet to run.
 * Processes draw a little in advance and keep what is left, so that most launches touch no shared word:
 * granted_ns runs ahead of the launches by at most half a millisecond per process, and last_launch_ns
 * moves at least once per half a millisecond of GPU time. What a draw got is never given back: costs
 * that turn out lower or higher are settled with later draws, so over seconds granted_ns is what the
 * process's own events measured. While a launch is held, waiting_until_ns is renewed every few
 * milliseconds; it lies in the past when none is, whatever became of the process.
 * All words may be changed at any time and hold from the next draw on; one that waits sees them
 * within 10 ms. priority is not read here: it orders the agent's lending. */

/* A slot is owned through an OFD write lock on this byte of `ledger` (beyond
 * its end): the kernel drops the lock when its owner dies or calls exec. */
#define AQ_SLOT_LOCK_BASE (1ULL << 40)

struct aq_quota {
  /* frozen header */
  uint8_t magic[8];     /* 0 */
  uint32_t layout;      /* 8 */
  uint32_t size;        /* 12: AQ_QUOTA_SIZE */
  uint8_t gpu_uuid[16]; /* 16: as cuDeviceGetUuid_v2 gives it */
  uint64_t check;       /* 32: FNV-1a 64 of bytes 0..31 */
  uint8_t reserved0[24];
  /* hot words */
  uint64_t memory_limit_bytes;     /* 64 */
  uint64_t cores_millipercent;     /* 72: of the GPU's time */
  uint64_t lent_millipercent;      /* 80: on top, while not expired */
  uint64_t lent_until_ns;          /* 88: CLOCK_MONOTONIC */
  uint64_t cost_factor_ppm;        /* 96: GPU time used / granted_ns, 1000000 = 1 */
  uint64_t context_estimate_bytes; /* 104: per context, until measured */
  uint64_t floor_bytes;            /* 112: least use to count, 0 = none */
  uint64_t flags;                  /* 120 */
  uint64_t epoch;                  /* 128: +1 after each change */
  uint64_t heartbeat_ns;           /* 136: agent alive, CLOCK_MONOTONIC */
  uint64_t priority;               /* 144: who gets idle time first: 0 = low or not given, 1 = high */
  uint8_t reserved1[104];
  /* Where the shim writes a line when it refuses the GPU altogether; a path inside the container that
   * ends with 0, empty = nowhere. Read even if the header is spoilt, but for its magic and layout. */
  uint8_t log_path[AQ_LOG_PATH]; /* 256 */
  uint8_t reserved2[AQ_QUOTA_SIZE - 256 - AQ_LOG_PATH];
};

/* One process's use. One writer per field: its owner, or the agent where it says so. */
struct aq_slot {
  uint64_t used_bytes;          /* 0: reserved and committed allocations, exact */
  uint64_t generation;          /* 8: +1 whenever a process takes the slot */
  uint64_t overhead_bytes;      /* 16: agent: measured beyond used_bytes (contexts, code) */
  uint64_t contexts;            /* 24: live contexts on this GPU */
  uint64_t changes;             /* 32: +1 with every change of used_bytes, contexts or code_bytes */
  uint64_t peak_bytes;          /* 40 */
  uint64_t pool_bytes;          /* 48: part of used_bytes */
  uint64_t graph_bytes;         /* 56: part of used_bytes */
  uint64_t pid;                 /* 64: in the owner's pid namespace; 0 = free */
  uint64_t pidns_inode;         /* 72: inode of /proc/self/ns/pid */
  uint64_t start_ticks;         /* 80: field 22 of /proc/self/stat */
  uint64_t host_pid;            /* 88: agent */
  uint64_t measured_contexts;   /* 96: agent: contexts held when overhead_bytes was measured */
  uint64_t code_bytes;          /* 104: sizes of the images loaded */
  uint64_t measured_code_bytes; /* 112: agent: code_bytes when overhead_bytes was measured */
  uint64_t managed_bytes;       /* 120: part of used_bytes that need not be on the GPU */
};

struct aq_ledger {
  /* frozen header */
  uint8_t magic[8];    /* 0 */
  uint32_t layout;     /* 8 */
  uint32_t size;       /* 12: AQ_LEDGER_SIZE */
  uint32_t slots;      /* 16: AQ_SLOTS */
  uint32_t reserved0;  /* 20 */
  uint64_t generation; /* 24: unique per ledger file */
  uint8_t reserved1[32];
  /* share block */
  uint64_t tat_ns;             /* 64: the share's budget is spent up to here (GCRA), CLOCK_MONOTONIC */
  uint64_t granted_ns;         /* 72: GPU time drawn since the ledger was made */
  uint64_t slots_used;         /* 80: slots 0 .. slots_used-1 may be in use; only grows */
  uint64_t denied;             /* 88: refused requests for memory */
  uint64_t throttled_ns;       /* 96: how long launches were held, summed over threads */
  uint64_t peak_bytes;         /* 104: highest sum seen */
  uint64_t overdraft;          /* 112: who may let a pool grow unannounced, one at a time: a number of
                                * its own, times AQ_SLOTS, plus its slot; 0: nobody */
  uint64_t last_launch_ns;     /* 120: when a launch last drew or was held, CLOCK_MONOTONIC */
  uint64_t waiting_until_ns;   /* 128: a launch is held until then at least, CLOCK_MONOTONIC */
  uint64_t paced_millipercent; /* 136: the share that tat_ns was last moved with */
  uint8_t reserved2[AQ_LEDGER_HEADER_SIZE - 144];
  struct aq_slot slot[AQ_SLOTS];
};

_Static_assert(sizeof(struct aq_quota) == AQ_QUOTA_SIZE, "quota is one page");
_Static_assert(sizeof(struct aq_slot) == AQ_SLOT_SIZE, "a slot is two cache lines");
_Static_assert(sizeof(struct aq_ledger) == AQ_LEDGER_SIZE, "ledger has no padding");

#endif
