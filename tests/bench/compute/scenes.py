# SPDX-License-Identifier: Apache-2.0
"""Tenants of a simulated GPU to measure: alone, or in company and held by the agent's thread."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from shim.tests.compute import nodes
from shim.tests.compute.nodes import Node
from tests.bench.compute.timeline import Sample
from tests.testkit.holder import holding

STEP_S: Final = 0.1


@dataclass(frozen=True)
class Tenant:
    """A running program, and what its share can be changed by."""

    process: nodes.Tenant
    reserve: Callable[[float], None]
    """Percent."""


@contextmanager
def node(program: str, *settings: str) -> Iterator[Node]:
    """A fresh one."""
    with tempfile.TemporaryDirectory() as folder, Node(folder=Path(folder), program=program) as made:
        if settings:
            made.set(*settings)
        yield made


def watch(made: Node, seconds: float, *, step_s: float = STEP_S) -> list[Sample]:
    """Samples for so long."""
    samples: list[Sample] = []
    end = time.monotonic() + seconds
    while not samples or samples[-1].at_s < end:
        samples.append(Sample(time.monotonic(), made.used_ns()))
        time.sleep(step_s)
    return samples


@contextmanager
def company(
    program: str,
    percents: Sequence[float],
    works: Sequence[str],
    *settings: str,
    high: Sequence[int] = (),
) -> Iterator[tuple[Node, list[Tenant]]]:
    """Tenants of one GPU, held by the agent's thread, those of these numbers with high priority.

    They have begun; in the driver's books each one's group is its number.
    """
    with node(program, *settings) as made:
        shares = [made.share(str(number), percent).path for number, percent in enumerate(percents)]
        environment = made.sandbox("0").environment(bare=True)
        first = [shares[number] for number in high]
        with holding(shares, environment=environment, high=first) as held:
            tenants = [
                Tenant(
                    process=made.start(str(number), works[number % len(works)]),
                    reserve=partial(held.reserve, share),
                )
                for number, share in enumerate(shares)
            ]
            yield made, tenants
