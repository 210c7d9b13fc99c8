/* SPDX-License-Identifier: Apache-2.0
 *
 * How contexts begin and end, whoever wants them.
 */
#ifndef SIM_CONTEXT_LIFE_H
#define SIM_CONTEXT_LIFE_H

#include "driver.h"

/* Lock the driver. INVALID_DEVICE: the process sees none of this number. */
CUresult context_enter_device(CUdevice device);

bool context_flags_are_valid(unsigned flags);

/* With the lock held. A context charged to its GPU; OUT_OF_MEMORY, or what the GPU's state forbids. */
CUresult context_create(CUdevice device, unsigned flags, bool primary, CUcontext *created);

/* ... and its end, with all that ends with it. */
void context_destroy(CUcontext context);

#endif
