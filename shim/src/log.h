/* SPDX-License-Identifier: Apache-2.0
 *
 * The shim's own log: a file that a quota names, or nowhere. Never standard output or error.
 */
#ifndef ALIQUOT_LOG_H
#define ALIQUOT_LOG_H

#include "aliquot_region.h"

/* Writes one line, "SECONDS pid PID, SHARE: WHAT", to the log that `quota` names; not the same twice in
 * a row, and no more than a few in a process's life. NULL, another magic or layout, no path: nothing is done.
 * Never waits; whatever goes wrong is left at that. `what` has static storage. Keeps errno. */
void aq_log_by(const struct aq_quota *quota, const char *share, const char *what);

#endif
