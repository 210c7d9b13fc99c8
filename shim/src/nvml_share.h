/* SPDX-License-Identifier: Apache-2.0
 *
 * The share of an NVML device handle.
 */
#ifndef ALIQUOT_NVML_SHARE_H
#define ALIQUOT_NVML_SHARE_H

#include "nvml_abi.h"
#include "share.h"

/* NULL: not attached, or the GPU has no share. Any thread; cheap from the second time on. */
struct aq_share *aq_nvml_share(nvmlDevice_t device);

/* Handles may mean something else after nvmlInit, and shares after a fork. */
void aq_nvml_share_reset(void);
void aq_nvml_share_reset_in_child(void);

#endif
