# SPDX-License-Identifier: Apache-2.0
"""Contexts and code that take more than was estimated: the limit is passed by the difference, until measured.

The simulator's contexts cost more than the share's estimate here, and its kernels take memory at their first
launch. The agent's own code measures.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from aliquot_agent import overhead, sharedir
from shim.tests import shares
from shim.tests.conftest import Clients
from shim.tests.probe import Probe, ended
from shim.tests.sandbox import MIB, SLOWER, Sandbox

PROCESSES: Final = 8
ROUNDS: Final = 600 // SLOWER
MANAGED: Final = 2
ON_DEVICE: Final = 1
POOL_PROPS: Final = 40
"""The cell where a pool's properties, or its location, begin."""
THINGS: Final = ("a few bytes", "a context", "code")


@pytest.fixture
def cost(node: Sandbox) -> int:
    """What a context really takes."""
    return node.context_bytes()


@pytest.fixture
def share(node: Sandbox, cost: int) -> Path:
    """Room for a context of each process, and some more, if the estimate were right."""
    estimate = cost * 3 // 4
    limit = (PROCESSES + 4) * estimate + 96 * MIB
    return shares.make(node, gpu=node.gpu(), limit=limit, estimate=estimate)


def announced(share: Path) -> int:
    """What contexts and code count that were not measured."""
    with sharedir.ShareFiles(path=share) as files:
        estimate = files.quota().context_estimate_bytes
    return sum(slot.contexts * estimate + slot.code_bytes for slot in shares.slots(share))


def measure(node: Sandbox, share: Path) -> None:
    """What the agent does once a second, of processes that stand still."""
    used = {int(process["pid"]): int(process["used"]) for process in node.books()["processes"]}
    with sharedir.ShareFiles(path=share) as files:
        estimate = files.quota().context_estimate_bytes
        for slot in files.ledger().slots:
            tracker = overhead.Tracker()
            for _ in range(2):  # less than estimated is believed the second time
                sample = tracker.observe(
                    before=slot, after=slot, nvml_bytes=used[slot.pid], context_estimate_bytes=estimate
                )
            if sample is not None:
                files.write_slot(slot, host_pid=slot.pid, overhead_bytes=sample)


class Team:
    """Processes that all do the same at the same time."""

    def __init__(self, *, node: Sandbox, program: str) -> None:
        self._runs = [node.start(program, str(seed + 1)) for seed in range(PROCESSES)]
        for run in self._runs:
            assert run.stdout is not None
            assert run.stdout.readline() == "begun\n"

    def do(self, what: str) -> list[tuple[int, int]]:
        """Granted and refused, of each."""
        for run in self._runs:
            assert run.stdin is not None
            run.stdin.write(what + "\n")
            run.stdin.flush()
        answers = []
        for run in self._runs:
            assert run.stdout is not None
            granted, refused, failed = map(int, run.stdout.readline().split())
            assert failed == 0, "no other error than OUT_OF_MEMORY"
            answers.append((granted, refused))
        return answers

    def end(self) -> None:
        for run in self._runs:
            assert ended(run)[0] == 0

    def kill(self) -> None:
        for run in self._runs:
            run.kill()
            run.wait()


@contextmanager
def team(node: Sandbox, clients: Clients) -> Iterator[Team]:
    """A team that ends well, or is killed."""
    members = Team(node=node, program=clients.linked("growing"))
    try:
        yield members
        members.end()
    finally:
        members.kill()


def test_limit_is_passed_by_what_was_not_estimated_and_no_more(
    node: Sandbox, share: Path, clients: Clients
) -> None:
    limit = shares.usage(share).limit_bytes
    with team(node, clients) as members:
        answers = [*members.do(f"grow {ROUNDS}"), *members.do("fill")]
        assert all(any(answer[kind] for answer in answers) for kind in (0, 1)), "the race was at the limit"
        group = node.container()
        unexpected = group["used"] - group["requested"] - announced(share)
        assert unexpected > PROCESSES * 3 * MIB
        assert limit < group["peak"] <= limit + unexpected
        assert group["requested_peak"] <= limit
        measure(node, share)
        assert shares.usage(share).used_bytes == group["used"] > limit
        assert members.do("ask") == [(0, len(THINGS))] * PROCESSES, "nothing more is granted"
        assert node.container() == group
        members.do("give")
        assert shares.usage(share).used_bytes == node.container()["used"]


def test_nothing_passes_the_limit_once_it_is_measured(node: Sandbox, share: Path, clients: Clients) -> None:
    with team(node, clients) as members:
        members.do(f"grow {ROUNDS}")
        members.do("give")
        measure(node, share)
        held = node.container()["used"]
        assert shares.usage(share).used_bytes == held
        limit = held + 64 * MIB
        shares.resize(share, limit)
        node.tool("reset")
        answers = members.do(f"hammer {ROUNDS}")
        assert all(any(answer[kind] for answer in answers) for kind in (0, 1)), "the race was at the limit"
        assert limit - 8 * MIB < node.container()["peak"] <= limit


@pytest.mark.parametrize(
    "end", ["cuMemFree_v2", "cuMemFreeAsync", "cuDevicePrimaryCtxReset_v2"], ids=["free", "later", "reset"]
)
def test_managed_memory_off_the_gpu_hides_no_context(
    node: Sandbox, share: Path, cost: int, start: Callable[..., Probe], end: str
) -> None:
    probe = start(node)
    probe.begin()
    measure(node, share)
    pointer = probe.ok("cuMemAllocManaged", "&4", 512 * MIB, 1).cells[4]
    measure(node, share)
    assert node.container()["used"] == cost
    assert shares.usage(share).used_bytes == 512 * MIB + cost
    assert [slot.managed_bytes for slot in shares.slots(share)] == [512 * MIB]
    probe.ok("cuMemPrefetchAsync", pointer, 512 * MIB, 0, 0)
    assert node.container()["used"] == 512 * MIB + cost
    measure(node, share)
    assert shares.usage(share).used_bytes == 512 * MIB + cost
    probe.ok(end, 0 if "Ctx" in end else pointer, 0)
    assert [slot.managed_bytes for slot in shares.slots(share) if slot.pid == probe.pid] == [0]


@pytest.mark.parametrize(
    "origin", ["cuMemPoolCreate", "cuMemGetDefaultMemPool"], ids=["made", "of its place"]
)
def test_managed_pool_off_the_gpu_hides_no_context(
    node: Sandbox, share: Path, cost: int, start: Callable[..., Probe], origin: str
) -> None:
    probe = start(node)
    probe.begin()
    measure(node, share)
    made = origin == "cuMemPoolCreate"
    for cell in range(POOL_PROPS, POOL_PROPS + 12):
        probe.command(f"!set {cell} 0")
    probe.command(f"!set {POOL_PROPS} {MANAGED if made else ON_DEVICE}")
    pool = probe.ok(origin, "&4", f"&{POOL_PROPS}", MANAGED).cells[4]
    pointer = probe.ok("cuMemAllocFromPoolAsync", "&5", 512 * MIB, pool, 0).cells[5]
    measure(node, share)
    assert node.container()["used"] == cost
    assert shares.usage(share).used_bytes == 512 * MIB + cost
    assert [slot.managed_bytes for slot in shares.slots(share)] == [512 * MIB]
    probe.ok("cuMemPrefetchAsync", pointer, 512 * MIB, 0, 0)
    measure(node, share)
    assert shares.usage(share).used_bytes == node.container()["used"] == 512 * MIB + cost
    probe.ok("cuMemFreeAsync", pointer, 0)
    if made:
        probe.ok("cuMemPoolDestroy", pool)
    else:
        probe.ok("cuStreamSynchronize", 0)
    assert [slot.managed_bytes for slot in shares.slots(share) if slot.pid == probe.pid] == [0]
    assert shares.usage(share).used_bytes == cost
