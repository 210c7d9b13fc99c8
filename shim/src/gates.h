/* SPDX-License-Identifier: Apache-2.0
 *
 * AQ_GATE of hooks.def: entry points that take device memory which is not accounted. Where a
 * limit holds they answer NOT_SUPPORTED, with outputs untouched; where every GPU in sight is
 * unlimited they are the driver's own.
 */
#ifndef ALIQUOT_GATES_H
#define ALIQUOT_GATES_H

#include "hooks.h"

/* What entry.S jumps to for the gate `id`: the driver's function, or one that refuses. */
__attribute__((used)) const void *aq_gate_enter(enum aq_id id);

#endif
