/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear memory that was freed in stream order: it stays charged until its stream has got there. An event of
 * our own, recorded after the free, tells.
 *
 * Any thread; the one mutex is never held across a driver call.
 */
#ifndef ALIQUOT_LEAVING_H
#define ALIQUOT_LEAVING_H

#include "abi.h"
#include "books.h"
#include "hot.h"

/* The driver has taken the free of `freed` into `stream`. */
void aq_leaving_add(const struct aq_freed *freed, CUstream stream, bool per_thread);

/* Gives back what is gone by now. Free while nothing is on its way. */
void aq_leaving_settle(void);

/* A context may be about to end, and our events with it: nobody asks for those from here on. To
 * aq_leaving_end, with whether it did end. */
struct aq_leaving;
struct aq_leaving *aq_leaving_take(CUcontext context);
void aq_leaving_end(struct aq_leaving *taken, bool ended);

/* In a forked child. */
void aq_leaving_reset(void);

#endif
