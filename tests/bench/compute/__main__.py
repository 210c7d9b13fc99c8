# SPDX-License-Identifier: Apache-2.0
"""python -m tests.bench.compute: shares of GPU time on the simulated GPU, alone and with the agent's help.

ALIQUOT_COMPUTE_S scales how long each run takes (default 1: some six minutes in all).
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shim.tests.compute.nodes import Node, Share, Tenant, build
from shim.tests.sandbox import Sandbox
from tests.bench.compute import plot, timeline
from tests.bench.compute.timeline import Sample
from tests.bench.figures import FOLDER, Figure, at_most, publish
from tests.testkit.holder import holding

HERE: Final = Path(__file__).resolve().parent
SCALE: Final = float(os.environ.get("ALIQUOT_COMPUTE_S", "1"))
STEP_S: Final = 0.1
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


@contextmanager
def node(program: str, *settings: str) -> Iterator[Node]:
    """A fresh one."""
    with tempfile.TemporaryDirectory() as folder, Node(folder=Path(folder), program=program) as made:
        if settings:
            made.set(*settings)
        yield made


def watch(made: Node, seconds: float) -> list[Sample]:
    """Samples for so long."""
    samples: list[Sample] = []
    end = time.monotonic() + seconds
    while not samples or samples[-1].at_s < end:
        samples.append(Sample(time.monotonic(), made.used_ns()))
        time.sleep(STEP_S)
    return samples


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


@contextmanager
def company(
    program: str, percents: Sequence[float], works: Sequence[str], *settings: str
) -> Iterator[tuple[Node, dict[str, Share], dict[str, Tenant]]]:
    """Tenants of one GPU, held by the agent's thread; none has begun."""
    with node(program, *settings) as made:
        shares = {
            f"{number}: {percent} %": made.share(str(number), percent)
            for number, percent in enumerate(percents)
        }
        environment = made.sandbox("0").environment(bare=True)
        with holding([share.path for share in shares.values()], environment=environment):
            tenants = {
                name: made.start(str(number), works[number % len(works)])
                for number, name in enumerate(shares)
            }
            yield made, shares, tenants


def together(program: str, percents: Sequence[float], works: Sequence[str], settings: str) -> list[Figure]:
    """Shares that compete."""
    with company(program, percents, works, *NODES[settings]) as (made, _, _):
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


def lending(program: str) -> tuple[list[Figure], str]:
    """A share that goes idle and comes back; and the picture of it."""
    with company(program, (30, 70), ("spin_1ms",)) as (made, shares, tenants):
        low, high = tenants
        zero = watch(made, 6)
        tenants[high].order("pause")
        idle = watch(made, 4)
        tenants[high].order("go")
        back = watch(made, 4)
        del shares
    samples = [*zero, *idle, *back]
    lent = next((end.at_s - idle[0].at_s for begin, end in timeline.windows(idle, 0.2)
                 if timeline.percent(begin, end, "0") > 80), 99.0)  # fmt: skip
    # A window of 200 ms in which the owner has what is its own again.
    owned = next((end.at_s - back[0].at_s for begin, end in timeline.windows(back, 0.2)
                  if timeline.percent(begin, end, "1") > 60), 99.0)  # fmt: skip
    figures = [
        at_most("an idle neighbour's share is lent", lent, "s", target=2),
        at_most("... and its owner has it back (in windows of 0.2 s)", owned, "s", target=0.4),
    ]
    curves = {low: timeline.curve(samples, "0"), high: timeline.curve(samples, "1")}
    begun = samples[0].at_s
    marks = [(idle[0].at_s - begun, "70 % idle"), (back[0].at_s - begun, "back")]
    return figures, plot.svg(curves, marks, "Two tenants of one GPU: 30 % and 70 %")


def unlimited(program: str) -> Figure:
    """No reservation, alone: held by nobody, counted by nobody."""

    def rate(run: Callable[[Node], object]) -> float:
        with node(program) as made:
            made.share("0", 0)
            run(made)
            made.measure(1)
            return made.measure(3 * SCALE)["0"]

    bare = rate(lambda made: made.start("0", "spin_20us", bare=True))
    with company(program, (0,), ("spin_20us",)) as (made, _, _):
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
    figures, picture = lending(program)
    yield figures
    yield {"compute.svg": picture}


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
