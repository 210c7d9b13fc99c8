# SPDX-License-Identifier: Apache-2.0
"""python -m tests.bench.compute: shares of GPU time on the simulated GPU, alone and with the agent's help.

ALIQUOT_COMPUTE_S scales how long each run takes (default 1: some seven minutes in all).
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from shim.tests.compute.nodes import Node, build
from shim.tests.sandbox import Sandbox
from tests.bench.compute import changes, timeline
from tests.bench.compute.scenes import company, node, watch
from tests.bench.figures import FOLDER, Figure, at_most, publish

HERE: Final = Path(__file__).resolve().parent
SCALE: Final = float(os.environ.get("ALIQUOT_COMPUTE_S", "1"))
PERCENTS: Final = (10, 30, 50, 70, 90)
WORKS: Final = {
    "kernels of 20 us": "spin_20us",
    "kernels of 1 ms": "spin_1ms",
    "kernels of 50 ms": "spin_50ms",
    "graphs of 20 us kernels": "graph:spin_20us*50",
    "mixed": "spin_20us,spin_3ms,spin_20ms",
}
COMPANIES: Final = ((30, 70), (20, 30, 50), (12.5,) * 8)
MIXED_COMPANY: Final = ("spin_1ms", "graph:spin_20us*50", "spin_20us,spin_3ms,spin_20ms")
NODES: Final = {
    "": (),
    ", FIFO, NVML 500 ms late": ("--time-slice-us", "fifo", "--nvml", "real", "--nvml-lag-ms", "500"),
}
ROUNDS: Final = 6


def alone(program: str, what: str, work: str, percent: float) -> list[Figure]:
    """One tenant with the GPU to itself, and nobody who corrects."""
    with node(program) as made:
        made.share("a", percent)
        made.start("a", work)
        samples = watch(made, 1 + 4 + 2 * SCALE)
    first = abs(timeline.percent(samples[0], timeline.after(samples, 1)[0], "a") - percent)
    later = timeline.worst(timeline.after(samples, 1), "a", percent, 4)
    name = f"alone, {percent} %, {what}"
    return [
        at_most(f"{name}: any 4 s", later, "points", target=3),
        at_most(f"{name}: first second", first, "points", target=10),
    ]


def together(program: str, percents: Sequence[float], works: Sequence[str], settings: str) -> list[Figure]:
    """Shares that compete."""
    with company(program, percents, works, *NODES[settings]) as (made, _):
        made.measure(5)
        used = made.measure(10 * SCALE)
    kinds = "1 ms" if len(set(works)) == 1 else "mixed"
    name = f"together, {'/'.join(f'{each:g}' for each in percents)}, {kinds}{settings}"
    figures = []
    for number, percent in enumerate(percents):
        error = abs(used[str(number)] - percent)
        figures.append(
            at_most(f"{name}: {percent:g} % ({number})", error, "points", target=max(0.05 * percent, 1))
        )
    return figures


def unlimited(program: str) -> Figure:
    """No reservation, alone: held by nobody, counted by nobody."""

    def rate(run: Callable[[Node], object]) -> float:
        with node(program) as made:
            made.share("0", 0)
            run(made)
            made.measure(1)
            return made.measure(3 * SCALE)["0"]

    bare = rate(lambda made: made.start("0", "spin_20us", bare=True))
    with company(program, (0,), ("spin_20us",)) as (made, _):
        made.measure(2)
        ours = made.measure(3 * SCALE)["0"]
    return at_most(
        "cores: 0, lending on, alone: penalty", 100 * (1 - ours / bare), "%", target=2, baseline=bare
    )


def launches(folder: Path) -> list[Figure]:
    """Added time of a launch, not paced and paced, by turns with the bare driver."""
    program = build(folder, HERE / "launch.c")
    best: dict[str, float] = {}
    with node(program) as made:
        share = made.share("a", 0)
        sandbox: Sandbox = made.sandbox("a")
        for _ in range(ROUNDS):
            for name, percent in (("bare", 0), ("not paced", 0), ("paced", 100)):
                share.cores(percent)
                took = float(sandbox.run(program, bare=name == "bare").stdout)
                best[name] = min(took, best.get(name, took))
    return [
        at_most(
            f"launch, {name}: added", best[name] - best["bare"], "ns", target=target, baseline=best["bare"]
        )
        for name, target in {"not paced": 6, "paced": 30}.items()
    ]


def measured(folder: Path) -> Iterator[Mapping[str, str] | list[Figure]]:
    """Everything, one table line after the other; files to write as mappings."""
    program = build(folder)
    yield launches(folder)
    yield [unlimited(program)]
    for what, work in WORKS.items():
        for percent in PERCENTS:
            yield alone(program, what, work, percent)
    for percents in COMPANIES:
        for works in (("spin_1ms",), MIXED_COMPANY):
            for settings in NODES:
                yield together(program, percents, works, settings)
    figures, picture = changes.lending(program)
    yield figures
    yield {"compute.svg": picture}
    yield changes.unreserved(program)
    yield [changes.starving(program)]
    yield changes.reservation(program)
    yield changes.priority(program)


def main() -> int:
    """Measures, prints, writes build/bench/compute.{json,svg}; a missed target does not fail it."""
    figures: list[Figure] = []
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for found in measured(Path(folder)):
            if isinstance(found, list):
                figures += found
            else:
                for name, text in found.items():
                    (FOLDER / name).write_text(text, encoding="utf-8")
    publish("compute", figures)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
