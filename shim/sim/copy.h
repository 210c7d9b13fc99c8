/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_COPY_H
#define SIM_COPY_H
#include "driver.h"
__attribute__((weak)) CUresult copy_node(const CUDA_MEMCPY3D *copy);
__attribute__((weak)) CUresult fill_node(const CUDA_MEMSET_NODE_PARAMS *fill);
#endif
