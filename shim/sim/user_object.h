/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects of the program's that graphs keep alive. All want the driver's lock held.
 */
#ifndef SIM_USER_OBJECT_H
#define SIM_USER_OBJECT_H

#include "driver.h"

/* References that a graph has, by object. */
struct user_hold {
  struct user_hold *next;
  CUuserObject object;
  unsigned count;
};

/* The same references once more. False: no memory, *copy is empty. */
bool user_holds_copy(const struct user_hold *holds, struct user_hold **copy);

/* Let go of all. */
void user_holds_end(struct user_hold **holds);

#endif
