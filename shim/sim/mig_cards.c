/* SPDX-License-Identifier: Apache-2.0
 *
 * Profiles, how often each fits, engines and placements: NVIDIA's MIG user guide, chapters "Supported MIG
 * Profiles" and "Getting Started" (nvidia-smi mig -lgip, -lgipp, -lci). SMs and memory: what nvidia-smi
 * prints of each card there and elsewhere. Of the H200 the memory of 3g.71gb and 4g.71gb (half of the
 * whole) and of 1g.35gb (that of 2g.35gb) was not found printed, nor the SMs of 1g.35gb (those of the H100).
 */
#include "mig_cards.h"

const struct mig_kind mig_kinds[MIG_KINDS] = {
    {0x0, 19, 1, 1, 0x7f, 7}, /* 1g */
    {0x7, 20, 1, 1, 0x7f, 1}, /* 1g with media engines */
    {0x9, 15, 1, 2, 0x55, 4}, /* 1g with twice the memory */
    {0x1, 14, 2, 2, 0x15, 3}, /* 2g */
    {0x2, 9, 3, 4, 0x11, 2},  /* 3g */
    {0x3, 5, 4, 4, 0x01, 1},  /* 4g */
    {0x4, 0, 7, 8, 0x01, 1},  /* 7g */
};

/* name, MiB, SMs; engines: copy, decoders, JPEG, OFA */
const struct mig_card mig_a100_40gb = {14,
                                       {{"1g.5gb", 4864, 14, 1, 0, 0, 0},
                                        {"1g.5gb+me", 4864, 14, 1, 1, 1, 1},
                                        {"1g.10gb", 9984, 14, 1, 1, 0, 0},
                                        {"2g.10gb", 9984, 28, 2, 1, 0, 0},
                                        {"3g.20gb", 20096, 42, 3, 2, 0, 0},
                                        {"4g.20gb", 20096, 56, 4, 2, 0, 0},
                                        {"7g.40gb", 40320, 98, 7, 5, 1, 1}}};

const struct mig_card mig_a100_80gb = {14,
                                       {{"1g.10gb", 9728, 14, 1, 0, 0, 0},
                                        {"1g.10gb+me", 9728, 14, 1, 1, 1, 1},
                                        {"1g.20gb", 19968, 14, 1, 1, 0, 0},
                                        {"2g.20gb", 19968, 28, 2, 1, 0, 0},
                                        {"3g.40gb", 40192, 42, 3, 2, 0, 0},
                                        {"4g.40gb", 40192, 56, 4, 2, 0, 0},
                                        {"7g.80gb", 80896, 98, 7, 5, 1, 1}}};

const struct mig_card mig_h100_80gb = {16,
                                       {{"1g.10gb", 9984, 16, 1, 1, 1, 0},
                                        {"1g.10gb+me", 9984, 16, 1, 1, 1, 1},
                                        {"1g.20gb", 20096, 26, 1, 1, 1, 0},
                                        {"2g.20gb", 20096, 32, 2, 2, 2, 0},
                                        {"3g.40gb", 40448, 60, 3, 3, 3, 0},
                                        {"4g.40gb", 40448, 64, 4, 4, 4, 0},
                                        {"7g.80gb", 81152, 132, 8, 7, 7, 1}}};

const struct mig_card mig_h200 = {16,
                                  {{"1g.18gb", 16384, 16, 1, 1, 1, 0},
                                   {"1g.18gb+me", 16384, 16, 1, 1, 1, 1},
                                   {"1g.35gb", 33280, 26, 1, 1, 1, 0},
                                   {"2g.35gb", 33280, 32, 2, 2, 2, 0},
                                   {"3g.71gb", 71168, 60, 3, 3, 3, 0},
                                   {"4g.71gb", 71168, 64, 4, 4, 4, 0},
                                   {"7g.141gb", 143360, 132, 8, 7, 7, 1}}};
