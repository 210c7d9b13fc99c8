/* SPDX-License-Identifier: Apache-2.0
 *
 * The generated table behind cuGetProcAddress, sorted by base name, stream variant and version.
 */
#ifndef SIM_LOOKUP_H
#define SIM_LOOKUP_H

enum sim_stream { SIM_STREAM_LEGACY, SIM_STREAM_PER_THREAD };

struct sim_entry_point {
  const char *base;
  int version; /* CUDA version that brought this ABI */
  enum sim_stream stream;
  void (*function)(void);
};

extern const struct sim_entry_point sim_entry_points[];
extern const unsigned sim_entry_point_count;

#endif
