# SPDX-License-Identifier: Apache-2.0
"""Threads of one process that get into each other's way: the driver's own books decide."""

from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.conftest import LIMIT, Clients
from shim.tests.probe import OUT_OF_MEMORY, SUCCESS, ended
from shim.tests.sandbox import MIB, SLOWER, TIMEOUT_S, Sandbox
from shim.tests.test_shim_memory import PAGE, taken

THREADS: Final = 10000 // SLOWER
STEP: Final = 32 * MIB
"""By which a simulated pool grows."""


@pytest.mark.parametrize(
    ("room", "result"), [(LIMIT - 100 * MIB, OUT_OF_MEMORY), (100 * MIB, SUCCESS)], ids=["too-much", "fits"]
)
def test_a_launch_under_way_keeps_the_room_that_it_relies_on(
    node: Sandbox, share: Path, clients: Clients, room: int, result: int
) -> None:
    program = clients.linked("relying")
    process = node.start(program, str(200 * MIB), str(room))
    status, out, errors = ended(process)
    assert status == 0, errors
    assert out.split() == [str(result), str(SUCCESS)]
    assert taken(node)[1] <= LIMIT + PAGE, "the peak, with a page of code"


def test_limits_of_one_context_are_charged_as_the_driver_has_set_them(
    node: Sandbox, share: Path, clients: Clients
) -> None:
    rounds = 8
    node.inject("slow", "--us", "500")  # the threads' calls take turns
    process = node.start(clients.linked("limits"), "4", "3", str(rounds))
    assert process.stdout is not None
    assert process.stdin is not None
    for _ in range(rounds):
        assert process.stdout.readline() == "done\n"
        assert shares.usage(share).used_bytes == taken(node)[0]
        process.stdin.write("\n")
        process.stdin.flush()
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert taken(node)[1] <= LIMIT


def test_many_short_lived_threads_leave_nothing(node: Sandbox, clients: Clients) -> None:
    """Of 8 processes together, in a share that is too small for all of them at once."""
    limit = 128 * MIB
    share = shares.make(node, gpu=node.gpu(), limit=limit)
    runs = [node.start(clients.linked("swarm"), str(THREADS)) for _ in range(8)]
    refused = 0
    for run in runs:
        assert run.stdout is not None
        refused += int(run.stdout.readline())
    assert refused > 0, "the race was at the limit"
    group = node.container()
    assert shares.usage(share).used_bytes == 0
    assert group["used"] == len(runs) * node.context_bytes()
    assert group["peak"] <= limit + STEP + len(runs) * node.context_bytes()
    for run in runs:
        run.communicate("\n", timeout=TIMEOUT_S)
        assert run.returncode == 0
