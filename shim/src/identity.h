/* SPDX-License-Identifier: Apache-2.0
 *
 * Who a process is, as far as a slot tells.
 */
#ifndef ALIQUOT_IDENTITY_H
#define ALIQUOT_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

struct aq_identity {
  uint64_t pid;
  uint64_t pidns_inode;
  uint64_t start_ticks; /* 0 where /proc does not tell */
};

void aq_identity_self(struct aq_identity *self);

/* True if `other` is of our pid namespace, alive with the same start time, and has the file
 * `inode` mapped, as far as we may look: pid and start time outlive an exec, mappings do not. */
bool aq_identity_lives(const struct aq_identity *other, uint64_t inode);

#endif
