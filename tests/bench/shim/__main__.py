# SPDX-License-Identifier: Apache-2.0
"""python -m tests.bench.shim: added time of the shim against the bare simulated driver, in one run."""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shim.tests import shares
from shim.tests.sandbox import MIB, SHIM, Sandbox
from tests.bench.figures import Figure, at_least, at_most, context, publish
from tests.bench.shim.measuring import build, lines

ROUNDS: Final = 20
RATE_ROUNDS: Final = 3
INITS: Final = 40
STARTS: Final = 500
PROCESSES: Final = 8
RATE_SECONDS: Final = 1
RATES: Final = {
    "alloc": ("alloc + free", 0.6),
    "async": ("async alloc + free", 0.5),
    "vmm": ("create + release", 0.6),
}
"""What several processes of one share do at once, and how much of the bare rate is to be left."""
CROWDS: Final = (1, 30, 300)
"""Processes that call cuInit at the same time."""
CROWD_ROUNDS: Final = 3
CALLS: Final = {
    "pair": ("alloc + free", 40),
    "pair-20000": ("alloc + free, 20 000 live", 40),
    "pair-100000": ("alloc + free, 100 000 live", 40),
    "async": ("cuMemAllocAsync + cuMemFreeAsync", 40),
    "async-step": ("cuMemAllocAsync + cuMemFreeAsync, 50 at once, 7 sizes", 40),
    "async-100000": ("cuMemAllocAsync + cuMemFreeAsync, 100 000 live", 40),
    "vmm": ("cuMemCreate + cuMemRelease", 40),
    "info": ("cuMemGetInfo", 20),
    "nvml": ("nvmlDeviceGetMemoryInfo", 20),
    "lookup-hooked": ("cuGetProcAddress, hooked name", 40),
    "lookup-other": ("cuGetProcAddress, other name", 40),
}
"""`measure`'s names: what they are, and the most that the shim may add in ns."""


def added(what: str, *, ours: float, bare: float, target: float, unit: str = "ns") -> Figure:
    """Added time, to be at most `target`."""
    return at_most(what, round(ours - bare, 1), unit, baseline=round(bare, 1), target=target)


def ratio(what: str, *, ours: float, bare: float, target: float) -> Figure:
    """Part of the bare rate that is left, to be at least `target`."""
    return at_least(what, ours / bare, "of bare", baseline=round(bare), target=target)


class Bench:
    """Runs clients bare and under the shim by turns, so that both see the same machine."""

    def __init__(self, *, sandbox: Sandbox, program: str) -> None:
        self._sandbox = sandbox
        self._program = program

    def calls(self) -> list[Figure]:
        """Calls within one process."""
        bare, ours = self._least(lambda bare: self._once("calls", bare=bare), ROUNDS)
        changing = round(ours["async-changing"] - bare["async-changing"], 1)
        return [
            *(
                added(what, ours=ours[name], bare=bare[name], target=target)
                for name, (what, target) in CALLS.items()
            ),
            context(
                "cuMemAllocAsync + cuMemFreeAsync, another size each time",
                changing,
                "ns",
                baseline=bare["async-changing"],
            ),
        ]

    def rate(self, family: str) -> Figure:
        """Pairs per second of several processes of one share."""

        def measure(bare: bool) -> dict[str, float]:
            command = (self._program, "rate", str(RATE_SECONDS), family)
            runs = [self._sandbox.start(*command, bare=bare) for _ in range(PROCESSES)]
            # As time per pair: the least is the best, as everywhere here.
            return {"pair": 1 / sum(lines(run.communicate(timeout=60)[0])["rate"] for run in runs)}

        bare, ours = self._least(measure, RATE_ROUNDS)
        pair, target = RATES[family]
        what = f"{pair} rate, {PROCESSES} processes"
        return ratio(what, ours=1 / ours["pair"], bare=1 / bare["pair"], target=target)

    def init(self, crowd: int) -> Figure:
        """cuInit of processes that start together: what one of them takes of a processor, by its median."""

        def measure(bare: bool) -> dict[str, float]:
            run = self._sandbox.run(self._program, "crowd", str(crowd), bare=bare)
            return {"init": statistics.median(float(line.split()[1]) for line in run.stdout.splitlines())}

        bare, ours = self._least(measure, INITS if crowd == 1 else CROWD_ROUNDS)
        what = f"cuInit, {crowd} process{'es' if crowd > 1 else ''} at once"
        return added(what, ours=ours["init"], bare=bare["init"], target=300_000)

    def start(self) -> Figure:
        """Start and end of a program that does not use CUDA."""

        def measure(bare: bool) -> dict[str, float]:
            env = {} if bare else {"LD_PRELOAD": str(SHIM)}
            start = time.monotonic_ns()
            os.waitpid(os.posix_spawn("/bin/true", ["true"], env), 0)
            return {"start": float(time.monotonic_ns() - start)}

        bare, ours = self._least(measure, STARTS)
        what = "start of a program without CUDA"
        return added(what, ours=ours["start"], bare=bare["start"], target=100_000)

    def _once(self, *arguments: str, bare: bool) -> dict[str, float]:
        return lines(self._sandbox.run(self._program, *arguments, bare=bare).stdout)

    def _least(
        self, measure: Callable[[bool], dict[str, float]], rounds: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Bare, ours: the least of each, as whatever else runs on the machine only adds."""
        best: dict[bool, dict[str, float]] = {True: {}, False: {}}
        for _ in range(rounds):
            for bare in (True, False):
                for name, value in measure(bare).items():
                    best[bare][name] = min(value, best[bare].get(name, value))
        return best[True], best[False]


def main() -> int:
    """Measures, prints, and writes build/bench/shim.json; a missed target is no failure of the command."""
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Sandbox(folder=Path(folder))
        sandbox.start_node("h200")
        shares.make(sandbox, gpu=sandbox.gpu(), limit=64 * 1024 * MIB)
        program = build(Path(folder) / "measure")
        bench = Bench(sandbox=sandbox, program=program)
        figures = [
            *bench.calls(),
            *(bench.rate(family) for family in RATES),
            *(bench.init(crowd) for crowd in CROWDS),
            bench.start(),
        ]
    publish("shim", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
