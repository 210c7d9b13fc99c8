/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs that allocate. Until a program makes such a node, nobody looks at its graphs.
 */
#ifndef ALIQUOT_GRAPHS_H
#define ALIQUOT_GRAPHS_H

/* A graph somewhere in this process has got an allocation node. */
void aq_graphs_allocate(void);

/* In a forked child. */
void aq_graphs_reset(void);

#endif
