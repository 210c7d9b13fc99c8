/* SPDX-License-Identifier: Apache-2.0
 *
 * Images of device code, as far as their size goes.
 */
#ifndef ALIQUOT_IMAGE_H
#define ALIQUOT_IMAGE_H

#include <stdint.h>

/* What an image (ELF, fat binary or its wrapper, PTX) may put on a GPU; 0: nothing to go by. The image must
 * be one that the driver can load. */
uint64_t aq_image_bytes(const void *image);

#endif
