# SPDX-License-Identifier: Apache-2.0
"""Keeps the GPU busy with kernels that do a fixed amount of work.

busy.py calibrate               prints how many rounds take the GPU 1 ms
busy.py ROUNDS WARM_S COUNT_S   prints "ready", waits for a line, works; then prints as JSON how many kernels
                                were done per second, after WARM_S and for COUNT_S
"""

import json
import sys
import time
from ctypes import addressof, byref, c_uint64, c_void_p
from typing import Final

from tests.gpu.driver import Driver

BATCH: Final = 16
FIRST: Final = 1 << 20
# A chain of operations that no compiler can shorten. A simulated GPU goes by the name: 1 ms.
CODE: Final = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry busy_1ms(.param .u64 rounds)
{
  .reg .pred %more, %never;
  .reg .u64 %left;
  .reg .f32 %x;
  ld.param.u64 %left, [rounds];
  mov.f32 %x, 0f3F800000;
again:
  fma.rn.f32 %x, %x, %x, %x;
  sub.u64 %left, %left, 1;
  setp.ne.u64 %more, %left, 0;
  @%more bra again;
  setp.lt.f32 %never, %x, 0f00000000;
  @%never trap;
  ret;
}
"""


class Work:
    """The kernel, loaded."""

    def __init__(self) -> None:
        self._driver = Driver()
        self._driver.context()
        module, self._kernel = c_void_p(), c_void_p()
        self._driver.call("cuModuleLoadData", byref(module), CODE)
        self._driver.call("cuModuleGetFunction", byref(self._kernel), module, b"busy_1ms")

    def batch(self, rounds: int) -> float:
        """Some kernels, until they are done; the seconds that they took."""
        value, none = c_uint64(rounds), c_void_p()
        arguments = (c_void_p * 1)(addressof(value))
        begin = time.monotonic()
        for _ in range(BATCH):
            self._driver.call("cuLaunchKernel", self._kernel, 1, 1, 1, 32, 1, 1, 0, none, arguments, none)
        self._driver.call("cuCtxSynchronize")
        return time.monotonic() - begin

    def rounds_per_ms(self) -> int:
        """Of the best of some batches."""
        best_s = min(self.batch(FIRST) for _ in range(5))
        return max(1, int(FIRST * BATCH / (best_s * 1000)))

    def rate(self, rounds: int, *, warm_s: float, count_s: float) -> float:
        """Kernels per second."""
        begin = time.monotonic()
        done, counted_from = 0, begin
        while (now := time.monotonic()) < begin + warm_s + count_s:
            if now < begin + warm_s:
                done, counted_from = 0, now
            self.batch(rounds)
            done += BATCH
        return done / (time.monotonic() - counted_from)


def main() -> None:
    """See above."""
    work = Work()
    work.batch(1)
    if sys.argv[1] == "calibrate":
        print(work.rounds_per_ms())
        return
    rounds, warm_s, count_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"per_s": work.rate(rounds, warm_s=warm_s, count_s=count_s)}), flush=True)


if __name__ == "__main__":
    main()
