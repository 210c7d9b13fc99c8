# SPDX-License-Identifier: Apache-2.0
"""Many processes and threads, all families, near the limit: by the driver's own peak nothing passes it.

ALIQUOT_SHIM_STORM_S: seconds that the storms of killed processes last (default: some rounds);
ALIQUOT_SHIM_STORM_SEED: other dice.
"""

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.conftest import LIMIT, Clients
from shim.tests.probe import ended
from shim.tests.sandbox import MIB, Sandbox

PAGE: Final = 2 * MIB
STEP: Final = 32 * MIB
"""By which a simulated pool grows."""
ROUNDS: Final = 8000
SEED: Final = int(os.environ.get("ALIQUOT_SHIM_STORM_SEED", "1"))
SECONDS: Final = float(os.environ.get("ALIQUOT_SHIM_STORM_S", "0"))


def storm(
    node: Sandbox, program: str, families: str, *, processes: int, threads: int, largest: int = STEP
) -> list[int]:
    """Taken, refused, failed."""
    rounds = str(ROUNDS // processes)
    runs = [
        node.start(program, families, str(threads), rounds, str(largest), str(SEED * 1000 + index))
        for index in range(processes)
    ]
    total = [0, 0, 0]
    for run in runs:
        status, out, errors = ended(run)
        assert (status, errors) == (0, "")
        total = [sum(pair) for pair in zip(total, map(int, out.split()), strict=True)]
    return total


SIZES: Final = [(1, 8), (2, 8), (8, 4), (32, 2)]


@pytest.mark.parametrize(("processes", "threads"), SIZES, ids=[f"{p}x{t}" for p, t in SIZES])
def test_explicit_memory_never_passes_the_limit(
    node: Sandbox, share: Path, clients: Clients, processes: int, threads: int
) -> None:
    program = clients.linked("storm")
    taken, refused, failed = storm(
        node, program, "lva", processes=processes, threads=threads, largest=LIMIT // 4
    )
    assert failed == 0, "no other error than OUT_OF_MEMORY"
    assert refused > 0 < taken, "the race was at the limit"
    group = node.container()
    assert group["requested_peak"] <= LIMIT
    small = processes * PAGE  # packed into pages of each process
    assert group["peak"] <= LIMIT + processes * node.context_bytes() + small
    assert shares.usage(share).used_bytes == 0


@pytest.mark.parametrize(("processes", "threads"), SIZES, ids=[f"{p}x{t}" for p, t in SIZES])
def test_pools_pass_the_limit_by_a_growth_step_at_most(
    node: Sandbox, share: Path, clients: Clients, processes: int, threads: int
) -> None:
    program = clients.linked("storm")
    taken, refused, failed = storm(node, program, "lpov", processes=processes, threads=threads)
    assert failed == 0, "no other error than OUT_OF_MEMORY"
    assert refused > 0 < taken, "the race was at the limit"
    allowed = LIMIT + STEP + processes * (node.context_bytes() + PAGE)
    assert node.container()["peak"] <= allowed
    assert shares.usage(share).used_bytes == 0


def test_processes_that_are_stopped_and_killed_leave_nothing(
    node: Sandbox, share: Path, clients: Clients
) -> None:
    program, dice = clients.linked("storm"), random.Random(SEED)
    end = time.monotonic() + SECONDS
    rounds = 0
    while rounds < 6 or time.monotonic() < end:
        rounds += 1
        runs = [
            node.start(program, "lpova", "3", "0", str(STEP), str(dice.randrange(1 << 30))) for _ in range(3)
        ]
        deadline = time.monotonic() + 60
        while sum(slot.changes > 0 for slot in shares.slots(share)) < len(runs):
            assert time.monotonic() < deadline
        for _ in range(dice.randrange(4)):
            victim = dice.choice(runs)
            victim.send_signal(signal.SIGSTOP)
            before = shares.usage(share).denied
            while shares.usage(share).denied < before + 2:  # the others go on, at the limit
                assert time.monotonic() < deadline
            victim.send_signal(signal.SIGCONT)
        for run in runs:
            run.kill()
            ended(run)
    allowed = LIMIT + STEP + 3 * (node.context_bytes() + PAGE)
    assert node.container()["peak"] <= allowed
    taken, _, failed = storm(node, program, "lpova", processes=1, threads=1)
    assert taken > 0 == failed
    assert shares.usage(share).used_bytes == 0


def test_memory_that_fits_is_given_in_the_end(node: Sandbox, share: Path, clients: Clients) -> None:
    """What all ask for together is half of the limit: whatever they announce in a race, nobody is refused."""
    program = clients.linked("storm")
    runs = [
        node.start(program, "lva", "1", "3000", str(LIMIT // 8 // 16 // 2), str(SEED + index))
        for index in range(8)
    ]
    for run in runs:
        status, out, _ = ended(run)
        assert status == 0
        assert [int(word) for word in out.split()][1:] == [0, 0], "none refused, none failed"
