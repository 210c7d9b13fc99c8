/* SPDX-License-Identifier: Apache-2.0
 *
 * hooks.def as numbers and tables: what there is, and where the driver's own functions are.
 */
#ifndef ALIQUOT_HOOKS_H
#define ALIQUOT_HOOKS_H

#include "driver_api.h"
#include "hot.h"
#include "nvml_api.h"

enum aq_library { AQ_CUDA, AQ_NVML, AQ_LIBRARIES };
enum aq_id {
#define AQ_HOOK(library, symbol) AQ_ID_##symbol,
#define AQ_GATE                  AQ_HOOK
#define AQ_USED                  AQ_HOOK
#include "hooks.def"
#undef AQ_HOOK
#undef AQ_GATE
#undef AQ_USED
  AQ_COUNT
};

struct aq_entry {
  const char *name;
  void *hook; /* our function; NULL: we only call the driver's */
  enum aq_library library;
};

struct aq_entry aq_entry(enum aq_id id);

/* Filled when the driver is first seen, before its table is rewritten; never changed again. */
extern void *aq_real_address[AQ_COUNT];

/* The slow way: loads the driver if need be. NULL when there is none, or it lacks the symbol. */
AQ_RARE void *aq_resolve(enum aq_id id);

static inline void *aq_real(enum aq_id id) {
  void *address = __atomic_load_n(&aq_real_address[id], __ATOMIC_ACQUIRE);
  return address ? address : aq_resolve(id);
}

/* The driver's own function, with its type; may be NULL. */
#define AQ_REAL(symbol) ((__typeof__(symbol) *)aq_real(AQ_ID_##symbol))

/* Above zero while this thread is inside a driver call of ours: a driver that calls its own
 * exports passes straight through. */
extern _Thread_local unsigned aq_depth __attribute__((tls_model("initial-exec")));

#endif
