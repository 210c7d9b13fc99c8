/* SPDX-License-Identifier: Apache-2.0
 *
 * A library that does nothing when it is loaded: what the shim is compared with.
 */
int empty(void);
static volatile char room[1 << 17]; /* zeroed memory, as the shim has */
int empty(void) {
  return room[0];
}
