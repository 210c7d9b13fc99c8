/* SPDX-License-Identifier: Apache-2.0
 *
 * What this process knows: its shares, and which GPU each belongs to.
 */
#ifndef ALIQUOT_STATE_H
#define ALIQUOT_STATE_H

#include "abi.h"
#include "share.h"

extern struct aq_share aq_shares[AQ_MAX_SHARES];

/* Finds and maps the shares, once. False: no valid one, nothing may be used. Any thread. */
bool aq_attach(void);

/* aq_attach, and a slot in each ledger. */
bool aq_attach_with_slots(void);

/* After the driver's cuInit: which ordinal has which share. Once; any thread. Changes nothing
 * if the driver does not say how many there are. */
void aq_devices_bind(void);

/* True after aq_devices_bind, until a fork. */
bool aq_is_ready(void);

/* The share of an ordinal; NULL: none, or no such ordinal. */
struct aq_share *aq_device_share(CUdevice device);
/* True if `device` is an ordinal that the driver has. */
bool aq_device_exists(CUdevice device);
/* The device whose memory a location is; -1: none's. Types that are not known yet count as one. */
CUdevice aq_location_device(const CUmemLocation *location);
/* The only ordinal there is; -1: there are several. */
CUdevice aq_sole_device(void);
/* True if there are GPUs in sight and each has a share without a limit. */
bool aq_all_unlimited(void);

/* The share of a GPU by UUID; NULL: none. */
struct aq_share *aq_share_of_uuid(const uint8_t uuid[16]);

/* Where the calling thread allocates. Its context is never remembered, as private tables of the
 * driver change it behind our back: the driver is asked each time, unless there is only one
 * context on only one GPU. Then a thread without any is not noticed here, but by the driver. On
 * failure the driver's error. */
struct aq_here {
  struct aq_share *share;
  CUcontext context;
};
CUresult aq_here(struct aq_here *here);

#endif
