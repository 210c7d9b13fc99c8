/* SPDX-License-Identifier: Apache-2.0 */
#include "uuid.h"

#include <stdio.h>
#include <string.h>

static uint64_t mix(uint64_t value) { /* splitmix64 */
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

void uuid_make(const char *name, uint64_t number, unsigned version, uint8_t uuid[16]) {
  uint64_t seed = mix(number + 1);
  for (const char *letter = name; *letter; letter++) {
    seed = mix(seed ^ (uint8_t)*letter);
  }
  for (int half = 0; half < 2; half++) {
    uint64_t bits = mix(seed + (uint64_t)half);
    memcpy(uuid + 8 * half, &bits, sizeof bits);
  }
  uuid[6] = (uint8_t)((uuid[6] & 0x0f) | version << 4);
  uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

void uuid_text(const char *prefix, const uint8_t b[16], char text[SIM_UUID_TEXT]) {
  snprintf(text, SIM_UUID_TEXT, "%.4s%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           prefix, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
           b[14], b[15]);
}
