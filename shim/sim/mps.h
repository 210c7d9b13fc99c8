/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated MPS: a control daemon (mps_control.c) hands clients to its
 * server, a process of its own that has the GPU; clients run beside one another
 * on their shares of the SMs, and a fault of one ends all.
 *
 * A client asks the daemon once, over the socket `control` of the pipe
 * directory, with one line, and is answered with one line.
 */
#ifndef SIM_MPS_H
#define SIM_MPS_H

#include "node.h"

#define MPS_PIPE_ENV     "CUDA_MPS_PIPE_DIRECTORY"
#define MPS_PIPE_DEFAULT "/tmp/nvidia-mps"
#define MPS_LOG_ENV      "CUDA_MPS_LOG_DIRECTORY"
#define MPS_LOG_DEFAULT  "/var/log/nvidia-mps"
#define MPS_PERCENT_ENV  "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define MPS_MEMORY_ENV   "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
#define MPS_LINE         512

/* Connect to the daemon of this pipe directory; -1: there is none. */
int mps_connect(const char *pipe_directory);

/* Send a line, take the answer (all of it, without the last newline); false: none came in time. */
bool mps_ask(int fd, const char *line, char *answer, size_t size);

/* "0=1G,1=512M" or one size ("1G"): bytes for a GPU's ordinal; UINT64_MAX: no limit is given. */
uint64_t mps_memory_limit(const char *setting, unsigned ordinal);

/* --- for libcuda, mps_client.c; the driver's lock held --- */

/* Become a client if there is a daemon. Returns a CUresult. */
int mps_join(const struct node *node, uint32_t slot);

/* What a call in a context gets after a fault, or when the server is gone; CUDA_SUCCESS: nothing happened. */
int mps_fault(void);

/* A kernel of this process did what none may do. */
void mps_raise(int error);

/* Whether another process with contexts on the GPU keeps this one out of it in exclusive mode. */
bool mps_excludes(uint32_t other_slot);

/* Whether `bytes` in allocations are within the client's limit. */
bool mps_allows(unsigned ordinal, uint64_t bytes);

/* Percent of the SMs that this process has. */
unsigned mps_percent(void);

#endif
