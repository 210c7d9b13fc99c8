/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear and managed memory that is freed in stream order: it stays until its stream has got there and the
 * process calls the driver again. All want the driver's lock held.
 */
#ifndef SIM_LATE_H
#define SIM_LATE_H

#include "memory.h"
#include "stream.h"

/* Free the block once all that is in the stream by now is done; at once, if it is. */
CUresult late_free(struct space_block *block, CUstream stream);

/* Give back what is due. False: nothing was. */
bool late_settle(void);

/* The block ends otherwise: with its context. */
void late_forget(const struct space_block *block);

#endif
