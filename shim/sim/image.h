/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program hands over as code: PTX, cubin or fat binary. Read for the names of its kernels and
 * variables only; nothing of it is ever run.
 */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How long a kernel runs: what its name says, as in spin_20us or _Z8work_3msPf; or what its first parameter
 * says (name contains "_param_ns"); or a default for the size of its grid. */
enum image_time { IMAGE_BY_NAME, IMAGE_BY_PARAMETER, IMAGE_BY_GRID };

struct image_kernel {
  char *name;
  enum image_time time;
  uint64_t ns;
  uint64_t more_bytes; /* of the GPU, from its first launch on: what its name says, as in grow_8mib */
};

struct image_variable {
  char *name;
  uint64_t size;
  uint64_t offset; /* among all of the image's */
};

struct image {
  size_t bytes;
  unsigned count;
  struct image_kernel *kernels;
  unsigned variable_count;
  struct image_variable *variables;
  uint64_t variable_bytes; /* that all of them take */
  bool any_name;           /* part of it is compressed: every name is taken for one of its kernels */
};

enum image_error { IMAGE_OK, IMAGE_INVALID, IMAGE_NO_MEMORY };

/* Read an image in memory. On success `image` owns its memory until image_free(). */
enum image_error image_read(const void *data, struct image *image);
void image_free(struct image *image);

/* Index of the kernel, added if any name will do; -1: there is none (or no memory). */
int image_find(struct image *image, const char *name);

/* NULL: there is none. */
const struct image_variable *image_variable(const struct image *image, const char *name);

#endif
