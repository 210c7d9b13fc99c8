/* SPDX-License-Identifier: Apache-2.0
 *
 * A hook that programs call all the time has what it needs put into it, but for what is rare. It begins where
 * processors fetch from, so that what it costs depends less on what stands before it.
 */
#ifndef ALIQUOT_HOT_H
#define ALIQUOT_HOT_H

#define AQ_HOT  __attribute__((flatten, hot, aligned(64)))
#define AQ_WARM __attribute__((hot, aligned(64))) /* what such hooks may call all the same */
#define AQ_RARE __attribute__((noinline, cold))

/* What is so in a hook that programs call all the time: it lies straight ahead there. */
#define AQ_USUALLY(condition) __builtin_expect(!!(condition), 1)
#define AQ_SELDOM(condition)  __builtin_expect(!!(condition), 0)

/* What every program writes at its start lies in the page that ld.so has written to, and takes no other. */
#define AQ_EARLY __attribute__((section(".data")))

#endif
