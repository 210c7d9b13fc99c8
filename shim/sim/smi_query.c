/* SPDX-License-Identifier: Apache-2.0
 *
 * aliquot-smi --query-...: fields named as nvidia-smi names them.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* drivers of all ages shall do */
#include <nvml.h>

#include <stdio.h>
#include <string.h>

#include "smi.h"

#define CELL 160

struct row {
  unsigned index;
  nvmlDevice_t device;
  const nvmlProcessInfo_t *process;
};

static bool put_number(char *cell, bool known, unsigned long long value) {
  return known && snprintf(cell, CELL, "%llu", value) > 0;
}

static bool memory_cell(const struct row *row, char *cell, char which) {
  nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
  bool known = nvmlDeviceGetMemoryInfo_v2(row->device, &memory) == NVML_SUCCESS;
  unsigned long long value = which == 't'   ? memory.total
                             : which == 'u' ? memory.used
                             : which == 'r' ? memory.reserved
                                            : memory.free;
  return put_number(cell, known, value >> 20);
}

static bool total(const struct row *row, char *cell) {
  return memory_cell(row, cell, 't');
}
static bool used(const struct row *row, char *cell) {
  return memory_cell(row, cell, 'u');
}
static bool unused(const struct row *row, char *cell) {
  return memory_cell(row, cell, 'f');
}
static bool reserved(const struct row *row, char *cell) {
  return memory_cell(row, cell, 'r');
}
static bool number(const struct row *row, char *cell) {
  return put_number(cell, true, row->index);
}
static bool name(const struct row *row, char *cell) {
  return nvmlDeviceGetName(row->device, cell, CELL) == NVML_SUCCESS;
}
static bool uuid(const struct row *row, char *cell) {
  return nvmlDeviceGetUUID(row->device, cell, CELL) == NVML_SUCCESS;
}
static bool driver(const struct row *row, char *cell) {
  return (void)row, nvmlSystemGetDriverVersion(cell, CELL) == NVML_SUCCESS;
}
static bool bus(const struct row *row, char *cell) {
  nvmlPciInfo_t pci;
  return nvmlDeviceGetPciInfo_v3(row->device, &pci) == NVML_SUCCESS &&
         snprintf(cell, CELL, "%s", pci.busId) > 0;
}
static bool utilization(const struct row *row, char *cell) {
  nvmlUtilization_t use;
  return nvmlDeviceGetUtilizationRates(row->device, &use) == NVML_SUCCESS && put_number(cell, true, use.gpu);
}
static bool temperature(const struct row *row, char *cell) {
  unsigned value = 0;
  return put_number(cell, nvmlDeviceGetTemperature(row->device, NVML_TEMPERATURE_GPU, &value) == NVML_SUCCESS,
                    value);
}
static bool power(const struct row *row, char *cell) {
  unsigned value = 0;
  return nvmlDeviceGetPowerUsage(row->device, &value) == NVML_SUCCESS &&
         snprintf(cell, CELL, "%u.%02u", value / 1000, value % 1000 / 10) > 0;
}
static bool sm_clock(const struct row *row, char *cell) {
  unsigned value = 0;
  return put_number(cell, nvmlDeviceGetClockInfo(row->device, NVML_CLOCK_SM, &value) == NVML_SUCCESS, value);
}
static bool compute_mode(const struct row *row, char *cell) {
  static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
  nvmlComputeMode_t mode;
  return nvmlDeviceGetComputeMode(row->device, &mode) == NVML_SUCCESS && (unsigned)mode < 4 &&
         snprintf(cell, CELL, "%s", names[mode]) > 0;
}
static bool mig_mode(const struct row *row, char *cell) {
  unsigned now;
  unsigned pending;
  return nvmlDeviceGetMigMode(row->device, &now, &pending) == NVML_SUCCESS &&
         snprintf(cell, CELL, "%s", now ? "Enabled" : "Disabled") > 0;
}
static bool pid(const struct row *row, char *cell) {
  return put_number(cell, true, row->process->pid);
}
static bool process_name(const struct row *row, char *cell) {
  return smi_process_name(row->process->pid, cell, CELL), true;
}
static bool process_memory(const struct row *row, char *cell) {
  return put_number(cell, true, row->process->usedGpuMemory >> 20);
}

struct field {
  const char *name;
  const char *unit;
  bool (*fill)(const struct row *row, char *cell);
  bool of_process;
};

static const struct field fields[] = {
    {"index", NULL, number, false},
    {"name", NULL, name, false},
    {"gpu_name", NULL, name, false},
    {"uuid", NULL, uuid, false},
    {"gpu_uuid", NULL, uuid, false},
    {"driver_version", NULL, driver, false},
    {"pci.bus_id", NULL, bus, false},
    {"memory.total", "MiB", total, false},
    {"memory.used", "MiB", used, false},
    {"memory.free", "MiB", unused, false},
    {"memory.reserved", "MiB", reserved, false},
    {"utilization.gpu", "%", utilization, false},
    {"temperature.gpu", NULL, temperature, false},
    {"power.draw", "W", power, false},
    {"clocks.sm", "MHz", sm_clock, false},
    {"compute_mode", NULL, compute_mode, false},
    {"mig.mode.current", NULL, mig_mode, false},
    {"pid", NULL, pid, true},
    {"process_name", NULL, process_name, true},
    {"used_memory", "MiB", process_memory, true},
    {"used_gpu_memory", "MiB", process_memory, true},
};

bool smi_take_query(struct smi_query *query, const char *argument) {
  static const char of_gpus[] = "--query-gpu=";
  static const char of_processes[] = "--query-compute-apps=";
  static const char format[] = "--format=";
  if (strncmp(argument, of_gpus, sizeof of_gpus - 1) == 0) {
    query->fields = argument + sizeof of_gpus - 1;
    return true;
  }
  if (strncmp(argument, of_processes, sizeof of_processes - 1) == 0) {
    query->fields = argument + sizeof of_processes - 1;
    query->of_processes = true;
    return true;
  }
  if (strncmp(argument, format, sizeof format - 1) != 0) {
    return false;
  }
  query->csv = strstr(argument, "csv") != NULL;
  query->no_header = strstr(argument, "noheader") != NULL;
  query->no_units = strstr(argument, "nounits") != NULL;
  return query->csv;
}

static const struct field *field_at(const struct smi_query *query, const char *at, size_t length) {
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    if (strlen(fields[i].name) == length && strncmp(fields[i].name, at, length) == 0 &&
        (query->of_processes || !fields[i].of_process)) {
      return &fields[i];
    }
  }
  return NULL;
}

/* `row` NULL: the header. False: an unknown field. */
static bool print_row(const struct smi_query *query, const struct row *row) {
  for (const char *at = query->fields; *at;) {
    size_t length = strcspn(at, ",");
    const struct field *field = field_at(query, at, length);
    char cell[CELL] = "";
    if (!field) {
      fprintf(stderr, "aliquot-smi: no field %.*s\n", (int)length, at);
      return false;
    }
    const char *unit = query->no_units ? NULL : field->unit;
    if (!row) {
      printf(unit ? "%s [%s]" : "%s", field->name, unit);
    } else if (!field->fill(row, cell)) {
      printf("[N/A]");
    } else {
      printf(unit ? "%s %s" : "%s", cell, unit);
    }
    at += length;
    at += *at == ',';
    printf("%s", *at ? ", " : "\n");
  }
  return true;
}

static void print_processes(const struct smi_query *query, struct row *row) {
  static nvmlProcessInfo_t infos[SMI_PROCESSES];
  unsigned count = smi_processes(row->device, infos);
  for (unsigned i = 0; i < count; i++) {
    row->process = &infos[i];
    print_row(query, row);
  }
}

int smi_query(const struct smi_query *query, unsigned count) {
  for (const char *at = query->fields; *at || at == query->fields;) {
    size_t length = strcspn(at, ",");
    if (!field_at(query, at, length) || !query->csv) {
      fprintf(stderr, query->csv ? "aliquot-smi: no field %.*s\n" : "aliquot-smi: give --format=csv\n",
              (int)length, at);
      return 2;
    }
    at += length;
    at += *at == ',';
  }
  if (!query->no_header) {
    print_row(query, NULL);
  }
  for (unsigned i = 0; i < count; i++) {
    struct row row = {.index = i};
    if (nvmlDeviceGetHandleByIndex_v2(i, &row.device) != NVML_SUCCESS) {
      continue;
    }
    if (query->of_processes) {
      print_processes(query, &row);
    } else {
      print_row(query, &row);
    }
  }
  return 0;
}
