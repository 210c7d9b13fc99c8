/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel launches. Copies and fills take hardly any SMs and are not held; graphs are launched in
 * hook_graph.c.
 */
#include "contexts.h"
#include "hooks.h"
#include "turn.h"

/* A launch of `function` in `stream`, by the driver's own function with the arguments that follow. */
#define IN_TURN(symbol, function, sizes, stream, per_thread, ...)                                            \
  __typeof__(symbol) *real = AQ_REAL(symbol);                                                                \
  if (!real)                                                                                                 \
    return CUDA_ERROR_NOT_SUPPORTED;                                                                         \
  if (aq_turns_are_off() || !(function))                                                                     \
    return real(__VA_ARGS__);                                                                                \
  struct aq_turn turn;                                                                                       \
  const struct aq_launch launch = {(function), sizes};                                                       \
  aq_turn_begin(&turn, &launch, (stream), (per_thread));                                                     \
  aq_depth++;                                                                                                \
  CUresult result = real(__VA_ARGS__);                                                                       \
  aq_depth--;                                                                                                \
  return aq_turn_end(&turn, (stream), result)

#define ALL(...) __VA_ARGS__

#define SIZES ALL({grid_x, grid_y, grid_z}, {block_x, block_y, block_z})

#define KERNEL(symbol, per_thread)                                                                           \
  AQ_HOT CUresult symbol(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
                         unsigned int block_x, unsigned int block_y, unsigned int block_z,                   \
                         unsigned int shared, CUstream stream, void **parameters, void **extra) {            \
    IN_TURN(symbol, function, SIZES, stream, per_thread, function, grid_x, grid_y, grid_z, block_x, block_y, \
            block_z, shared, stream, parameters, extra);                                                     \
  }

KERNEL(cuLaunchKernel, false)
KERNEL(cuLaunchKernel_ptsz, true)

#define COOPERATIVE(symbol, per_thread)                                                                      \
  CUresult symbol(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,        \
                  unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,     \
                  CUstream stream, void **parameters) {                                                      \
    IN_TURN(symbol, function, SIZES, stream, per_thread, function, grid_x, grid_y, grid_z, block_x, block_y, \
            block_z, shared, stream, parameters);                                                            \
  }

COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

#define SIZES_OF(of)                                                                                         \
  ALL({(of)->gridDimX, (of)->gridDimY, (of)->gridDimZ}, {(of)->blockDimX, (of)->blockDimY, (of)->blockDimZ})

/* Without a configuration the driver says what is wrong. */
#define EXTENDED(symbol, per_thread)                                                                         \
  AQ_HOT CUresult symbol(const CUlaunchConfig *config, CUfunction function, void **parameters,               \
                         void **extra) {                                                                     \
    if (!config)                                                                                             \
      return AQ_REAL(symbol) ? AQ_REAL(symbol)(config, function, parameters, extra)                          \
                             : CUDA_ERROR_NOT_SUPPORTED;                                                     \
    IN_TURN(symbol, function, SIZES_OF(config), config->hStream, per_thread, config, function, parameters,   \
            extra);                                                                                          \
  }

EXTENDED(cuLaunchKernelEx, false)
EXTENDED(cuLaunchKernelEx_ptsz, true)

/* One kernel on several GPUs: each pays its part, and waits its turn, before all are launched. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                              unsigned int flags) {
  struct aq_turn turns[AQ_MAX_DEVICES];
  if (!AQ_REAL(cuLaunchCooperativeKernelMultiDevice))
    return CUDA_ERROR_NOT_SUPPORTED;
  if (aq_turns_are_off() || !list || count > AQ_MAX_DEVICES)
    return AQ_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
  for (unsigned int i = 0; i < count; i++) {
    const struct aq_launch launch = {list[i].function, SIZES_OF(&list[i])};
    aq_turn_begin(&turns[i], &launch, list[i].hStream, false);
  }
  aq_depth++;
  CUresult result = AQ_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
  aq_depth--;
  for (unsigned int i = 0; i < count; i++)
    aq_turn_end(&turns[i], list[i].hStream, result);
  return result;
}

/* --- the way of CUDA 1: the block was set before, and is part of what the function is --- */

CUresult cuLaunch(CUfunction function) {
  IN_TURN(cuLaunch, function, ALL({1, 1, 1}, {0, 0, 0}), NULL, false, function);
}

CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  IN_TURN(cuLaunchGrid, function, ALL({(unsigned)width, (unsigned)height, 1}, {0, 0, 0}), NULL, false,
          function, width, height);
}

CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  IN_TURN(cuLaunchGridAsync, function, ALL({(unsigned)width, (unsigned)height, 1}, {0, 0, 0}), stream, false,
          function, width, height, stream);
}
