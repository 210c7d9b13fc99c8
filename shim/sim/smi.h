/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of aliquot-smi.
 */
#ifndef SIM_SMI_H
#define SIM_SMI_H

#include <stdbool.h>
#include <stddef.h>

#define SMI_PROCESSES 4096U

/* A table as comma-separated values. */
struct smi_query {
  const char *fields; /* NULL: none asked for */
  bool of_processes;
  bool csv;
  bool no_header;
  bool no_units;
};

/* Take one argument of the command line; false: not one of a query. */
bool smi_take_query(struct smi_query *query, const char *argument);

int smi_query(const struct smi_query *query, unsigned count);

/* What is to be changed, on one GPU or all. */
struct smi_set {
  const char *gpu;   /* index or UUID; NULL: all */
  const char *mode;  /* compute mode; NULL: stays */
  const char *slice; /* number of a time slice; NULL: stays */
  bool policy;       /* `compute-policy` was said */
  bool list;
};

/* Take the argument at `*at`, and its value; false: not one of these. */
bool smi_take_set(struct smi_set *set, int argc, char **argv, int *at);

int smi_set(const struct smi_set *set, unsigned count);

int smi_failed(const char *what, nvmlReturn_t error);
unsigned smi_processes(nvmlDevice_t device, nvmlProcessInfo_t *infos);
void smi_process_name(unsigned pid, char *name, size_t size);

/* The MIG devices of a GPU, for -L and for the screen. */
void smi_list_mig(nvmlDevice_t device);
void smi_show_mig(unsigned index, nvmlDevice_t device);

#endif
