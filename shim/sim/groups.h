/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: the processes of one container, told apart by their mount namespace
 * (or by ALIQUOT_SIM_GROUP, for tests without containers). A group outlives its
 * processes, so that its peak can be read afterwards.
 */
#ifndef SIM_GROUPS_H
#define SIM_GROUPS_H

#include "node.h"

#define SIM_GROUP_ENV "ALIQUOT_SIM_GROUP"

/* Write this process's group into its slot, whose life has begun. False: no group is free. */
bool groups_join(const struct node *node, uint32_t slot);

/* Empty all groups that have neither process nor memory. */
void groups_forget_unused(const struct node *node);

#endif
