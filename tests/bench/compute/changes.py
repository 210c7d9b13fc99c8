# SPDX-License-Identifier: Apache-2.0
"""Shares that change while tenants run: lent and given back, reserved anew, first served by priority."""

import time
from collections.abc import Sequence
from typing import Final

from tests.bench.compute import plot, timeline
from tests.bench.compute.scenes import company, watch
from tests.bench.compute.timeline import Sample
from tests.bench.figures import Figure, at_most

FINE_S: Final = 0.02
WINDOW_S: Final = 0.2
STARVING_S: Final = 8
MOST: Final = 0.9
"""Of what a tenant can have: with so much it has it."""


def lending(program: str) -> tuple[list[Figure], str]:
    """A share that goes idle and comes back; and the picture of it."""
    with company(program, (30, 70), ("spin_1ms",)) as (made, tenants):
        zero = watch(made, 6)
        tenants[1].process.order("pause")
        idle = watch(made, 4, step_s=FINE_S)
        tenants[1].process.order("go")
        back = watch(made, 4, step_s=FINE_S)
    figures = [
        at_most("an idle neighbour's share is lent after", _has(idle, "0", 100), "s", target=2),
        at_most("... and its owner has it back after", _has(back, "1", 70), "s", target=0.2),
    ]
    samples = [*zero, *idle, *back]
    curves = {"0: 30 %": timeline.curve(samples, "0"), "1: 70 %": timeline.curve(samples, "1")}
    begun = samples[0].at_s
    marks = [(idle[0].at_s - begun, "70 % idle"), (back[0].at_s - begun, "back")]
    return figures, plot.svg(curves, marks, "Two tenants of one GPU: 30 % and 70 %")


def unreserved(program: str) -> list[Figure]:
    """A tenant without a reservation, beside the owner of a share who is idle, and comes back."""
    with company(program, (70, 0), ("spin_1ms",)) as (made, tenants):
        tenants[0].process.order("pause")
        made.measure(3)
        used = made.measure(3)
        tenants[0].process.order("go")
        back = watch(made, 3, step_s=FINE_S)
    return [
        at_most("cores: 0 beside an idle share: lost of the GPU", 100 - used["1"], "points", target=2),
        at_most("... and the share's owner has it back after", _has(back, "0", 70), "s", target=0.2),
    ]


def starving(program: str) -> Figure:
    """The smallest share with kernels of 5 ms, beside one that takes the rest by long ones."""
    longest_s, count = 0.0, 0
    with company(program, (1, 99), ("spin_5ms", "spin_50ms")) as (_, tenants):
        last_s = begin_s = time.monotonic()
        while last_s - begin_s < STARVING_S:
            now_s, seen = time.monotonic(), tenants[0].process.launches()
            if seen > count or now_s - last_s > STARVING_S:
                longest_s, last_s, count = max(longest_s, now_s - last_s), now_s, seen
            time.sleep(FINE_S)
    return at_most("1 %, kernels of 5 ms: longest time without one", longest_s, "s", target=1)


def reservation(program: str) -> list[Figure]:
    """Two tenants whose shares are changed under them."""
    after = (60, 40)
    with company(program, (30, 70), ("spin_1ms",)) as (made, tenants):
        made.measure(6)
        for tenant, percent in zip(tenants, after, strict=True):
            tenant.reserve(percent)
        samples = watch(made, 5)
    name = "30/70 become 60/40: the 5 s after it"
    return [
        at_most(
            f"{name}: {percent} %",
            abs(timeline.percent(samples[0], samples[-1], str(number)) - percent),
            "points",
            target=0.2 * percent,
        )
        for number, percent in enumerate(after)
    ]


def priority(program: str) -> list[Figure]:
    """Two of 20 % that want all; what nobody has reserved is for the one of high priority first."""
    with company(program, (20, 20), ("spin_1ms",), high=[1]) as (made, tenants):
        made.measure(5)
        used = made.measure(5)
        tenants[1].process.order("pause")
        idle = watch(made, 3, step_s=FINE_S)
        tenants[1].process.order("go")
        back = watch(made, 3, step_s=FINE_S)
    name = "20 % of high beside 20 % of low priority"
    return [
        at_most(f"{name}: high gets 80 %", abs(used["1"] - 80), "points", target=4),
        at_most(f"{name}: low gets its 20 %", abs(used["0"] - 20), "points", target=1),
        at_most(f"{name}: low is lent all when high is idle, after", _has(idle, "0", 100), "s", target=2),
        at_most("... and high has its 80 % back after", _has(back, "1", 80), "s", target=0.2),
    ]


def _has(samples: Sequence[Sample], tenant: str, percent: float) -> float:
    """Seconds until a tenant has that much of the GPU, for a while at least."""
    return timeline.reached(samples, tenant, MOST * percent, WINDOW_S)
