# SPDX-License-Identifier: Apache-2.0
"""Crashes, stops, forks and many processes: nobody blocks anybody, nothing stays charged."""

import fcntl
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aliquot_agent import region
from shim.tests import shares
from shim.tests.conftest import LIMIT, Clients
from shim.tests.probe import NOT_INITIALIZED, NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS, Probe, ended
from shim.tests.sandbox import MIB, SLOWER, TIMEOUT_S, Sandbox

Start = Callable[..., Probe]
PAGE = 2 * MIB


def test_memory_of_a_killed_process_comes_back(node: Sandbox, share: Path, start: Start) -> None:
    victim, other = start(node), start(node)
    victim.begin()
    other.begin()
    assert victim.alloc(400 * MIB)[0] == SUCCESS
    assert other.alloc(200 * MIB)[0] == OUT_OF_MEMORY
    victim.kill()
    assert other.alloc(LIMIT)[0] == SUCCESS, "swept before a refusal"
    second_slot = region.LEDGER_HEADER_SIZE + region.SLOT_SIZE
    at = second_slot + region.SlotLayout.peak_bytes.offset
    assert (share / "ledger").read_bytes()[at : at + 8] == LIMIT.to_bytes(8, "little"), "its peak"


def test_view_forgets_a_killed_process(node: Sandbox, share: Path, start: Start) -> None:
    victim, other = start(node), start(node)
    victim.begin()
    other.begin()
    assert victim.alloc(400 * MIB)[0] == SUCCESS
    assert other.info()[0] == LIMIT - 400 * MIB
    victim.kill()
    deadline = time.monotonic() + TIMEOUT_S
    while other.info()[0] != LIMIT:
        assert time.monotonic() < deadline, "a dead process's memory is still seen"


def test_stopped_process_blocks_nobody(node: Sandbox, share: Path, start: Start) -> None:
    stopped, other = start(node), start(node)
    stopped.begin()
    assert stopped.alloc(100 * MIB)[0] == SUCCESS
    stopped.kill(signal.SIGSTOP)
    other.begin()
    assert other.alloc(LIMIT - 100 * MIB)[0] == SUCCESS
    assert other.alloc(1)[0] == OUT_OF_MEMORY, "what it holds still counts"
    stopped.kill(signal.SIGCONT)
    assert stopped.alloc(1)[0] == OUT_OF_MEMORY


def test_memory_of_a_checkpointed_process_is_kept_for_it(node: Sandbox, share: Path, start: Start) -> None:
    probe, other = start(node), start(node)
    probe.begin()
    other.begin()
    pointer = probe.alloc(400 * MIB)[1]
    for call in ("Lock", "Checkpoint"):
        probe.ok(f"cuCheckpointProcess{call}", probe.pid, 0)
    assert node.books()["gpus"][0]["used"] == node.context_bytes(), "the other one's context"
    assert other.alloc(200 * MIB)[0] == OUT_OF_MEMORY
    assert other.alloc(LIMIT - 400 * MIB)[0] == SUCCESS
    for call in ("Restore", "Unlock"):
        probe.ok(f"cuCheckpointProcess{call}", probe.pid, 0)
    assert probe.alloc(1)[0] == OUT_OF_MEMORY
    assert probe.free(pointer) == SUCCESS
    assert other.alloc(400 * MIB)[0] == SUCCESS


def test_fork_before_the_first_call(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.command("!fork")
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS
    assert len(shares.slots(share)) == 1


def test_fork_after_looking_up_functions(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.ok("cuGetProcAddress_v2", "=cuMemAlloc", "&10", 12000, 0, "&11")
    probe.ok("cuDriverGetVersion", "&12")
    probe.command("!fork")
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS


def test_fork_after_nvml_alone(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.ok("nvmlInit_v2")
    probe.command("!fork")
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS
    assert probe.alloc(1)[0] == OUT_OF_MEMORY


def test_child_of_an_initialised_process_gets_the_drivers_error(
    node: Sandbox, share: Path, start: Start
) -> None:
    probe = start(node)
    probe.begin()
    pointer = probe.alloc(100 * MIB)[1]
    before = int(probe.command("!descriptors"))
    probe.command("!fork")
    assert probe.call("cuInit", 0).result == NOT_INITIALIZED
    assert probe.alloc(1)[0] == NOT_INITIALIZED
    assert probe.free(pointer) == NOT_INITIALIZED
    assert probe.call("cuMemGetInfo_v2", "&2", "&3").result == NOT_INITIALIZED
    assert int(probe.command("!descriptors")) <= before
    probe.send("!exit 7")
    assert probe.receive() == "child 7"
    probe.receive()
    assert probe.alloc(LIMIT - 100 * MIB)[0] == SUCCESS, "the parent goes on"
    assert probe.alloc(1)[0] == OUT_OF_MEMORY
    assert probe.free(pointer) == SUCCESS
    assert [slot.used_bytes for slot in shares.slots(share) if slot.used_bytes] == [LIMIT - 100 * MIB]


def test_child_does_not_keep_its_dead_parents_slot(node: Sandbox, share: Path, start: Start) -> None:
    parent, other = start(node), start(node)
    parent.begin()
    assert parent.alloc(LIMIT)[0] == SUCCESS
    parent.command("!fork")
    other.begin()
    parent.kill()  # the parent; the child is an orphan now and holds no lock
    assert other.alloc(LIMIT)[0] == SUCCESS


def test_exec_gives_everything_back(node: Sandbox, share: Path, start: Start) -> None:
    probe, other = start(node), start(node)
    probe.begin()
    other.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS
    program = str(Path(f"/proc/{probe.pid}/exe").resolve())
    probe.send(f"!exec {program}")
    deadline = time.monotonic() + TIMEOUT_S
    while "/ledger" in Path(f"/proc/{probe.pid}/maps").read_text():
        assert time.monotonic() < deadline
    assert probe.command("!pid") == str(probe.pid)
    assert other.alloc(LIMIT)[0] == SUCCESS
    probe.begin()
    assert probe.alloc(1)[0] == OUT_OF_MEMORY


def test_program_that_closes_all_descriptors_keeps_its_books(
    node: Sandbox, share: Path, start: Start
) -> None:
    probe, other = start(node), start(node)
    probe.begin()
    assert probe.alloc(300 * MIB)[0] == SUCCESS
    probe.command("!close")
    other.begin()
    assert other.alloc(LIMIT)[0] == OUT_OF_MEMORY, "alive: not swept"
    assert other.alloc(212 * MIB)[0] == SUCCESS
    assert probe.alloc(1)[0] == OUT_OF_MEMORY
    assert probe.info()[0] == 0


def test_descriptor_that_the_program_reuses_is_left_alone(node: Sandbox, share: Path, start: Start) -> None:
    probe, other = start(node), start(node)
    probe.begin()
    assert probe.alloc(300 * MIB)[0] == SUCCESS
    numbers = [int(path.name) for path in Path(f"/proc/{probe.pid}/fd").iterdir() if _is_ledger(path)]
    assert len(numbers) == 1
    assert numbers[0] >= 100, "out of the program's way"
    probe.command("!close")
    probe.command(f"!reuse {numbers[0]}")
    other.begin()
    assert other.alloc(LIMIT)[0] == OUT_OF_MEMORY
    assert probe.alloc(LIMIT)[0] == OUT_OF_MEMORY, "sweeps, and finds its ledger again"
    assert probe.command(f"!check {numbers[0]}") == "1"
    probe.command("!fork")
    assert probe.command(f"!check {numbers[0]}") == "1", "nor does a child close it"


def _is_ledger(path: Path) -> bool:
    try:
        return path.readlink().name == "ledger"
    except OSError:
        return False


def test_sweep_by_another_pid_namespace_is_noticed_by_the_owner(
    node: Sandbox, share: Path, start: Start
) -> None:
    """Its lock is lost, and a sweeper of another namespace cannot tell that the owner lives."""
    probe, other = start(node), start(node, new_pids=True)
    probe.begin()
    pointer = probe.alloc(300 * MIB)[1]
    probe.command("!close")
    other.begin()
    assert other.alloc(200 * MIB)[0] == SUCCESS
    other.alloc(LIMIT)  # refused, or not: sweeps in any case
    assert probe.alloc(1 * MIB)[0] in (SUCCESS, OUT_OF_MEMORY)
    total = sum(slot.used_bytes for slot in shares.slots(share))
    assert total >= 500 * MIB, "the owner entered what it holds"
    assert probe.free(pointer) == SUCCESS
    assert sum(slot.used_bytes for slot in shares.slots(share)) == total - 300 * MIB


def test_pid_namespaces_share_one_limit(node: Sandbox, share: Path, start: Start) -> None:
    one, two = start(node, new_pids=True), start(node, new_pids=True)
    one.begin()
    two.begin()
    assert one.command("!pid") == two.command("!pid"), "the same pid in both"
    assert one.alloc(300 * MIB)[0] == SUCCESS
    assert two.alloc(300 * MIB)[0] == OUT_OF_MEMORY
    assert two.alloc(212 * MIB)[0] == SUCCESS
    assert one.info()[0] == 0


@contextmanager
def all_slots_taken(share: Path) -> Iterator[None]:
    """Every slot in use by a process of some other namespace."""
    with (share / "ledger").open("r+b") as ledger:
        whole = struct.pack("@hhqqi4x", fcntl.F_WRLCK, 0, region.SLOT_LOCK_BASE, region.SLOTS, 0)
        fcntl.fcntl(ledger, fcntl.F_OFD_SETLK, whole)
        for index in range(region.SLOTS):
            slot = region.LEDGER_HEADER_SIZE + index * region.SLOT_SIZE
            shares.poke(share, "ledger", slot + region.SlotLayout.pid.offset, (1).to_bytes(8, "little"))
        yield


def test_cuinit_is_refused_when_all_slots_are_taken(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    with all_slots_taken(share):
        assert probe.call("cuInit", 0).result == NOT_PERMITTED
        assert probe.ok("nvmlInit_v2").result == SUCCESS, "readers need no slot"
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS


def test_many_processes_get_slots_of_their_own(node: Sandbox, share: Path, start: Start) -> None:
    count = 40
    probes = [start(node) for _ in range(count)]
    for probe in probes:
        probe.send("cuInit 0")
    assert {probe.receive() for probe in probes} == {"0"}
    assert len({slot.pid for slot in shares.slots(share)}) == count
    for probe in probes:
        probe.kill()
    start(node).begin()
    assert len(shares.slots(share)) == 1, "the dead are swept at registration"


@pytest.mark.parametrize(("processes", "threads"), [(8, 4), (2, 16), (1, 8)], ids=["8x4", "2x16", "1x8"])
def test_race_near_the_limit_never_passes_it(
    node: Sandbox, share: Path, clients: Clients, processes: int, threads: int
) -> None:
    hammer = clients.linked("hammer")
    runs = [
        node.start(hammer, str(threads), "2000", str(64 * MIB), str(seed + 1)) for seed in range(processes)
    ]
    taken = refused = 0
    for run in runs:
        status, out, errors = ended(run)
        assert (status, errors) == (0, "")
        numbers = [int(word) for word in out.split()]
        taken, refused = taken + numbers[0], refused + numbers[1]
        assert numbers[2] == 0, "no other error than OUT_OF_MEMORY"
    group = node.container()
    assert group["requested_peak"] <= LIMIT
    assert group["peak"] - processes * node.context_bytes() <= LIMIT + processes * PAGE, "small ones: packed"
    assert refused > 0 < taken, "the race was at the limit"
    assert sum(slot.used_bytes for slot in shares.slots(share)) == 0


def run_contexts(node: Sandbox, clients: Clients, way: str, threads: int, rounds: int) -> list[int]:
    # One heap without caches: the simulated driver soon gives a handle out again, to any thread.
    env = node.environment() | {"MALLOC_ARENA_MAX": "1", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    run = node.run(clients.linked("contexts"), way, str(threads), str(rounds), str(64 * MIB), env=env)
    return [int(word) for word in run.stdout.split()]


def test_context_handle_in_use_again_keeps_the_new_contexts_memory(node: Sandbox, clients: Clients) -> None:
    gpu = node.gpu()
    share = shares.make(node, gpu=gpu, limit=135 * MIB)
    taken, _, failed = run_contexts(node, clients, "made", threads=16, rounds=30000 // SLOWER)
    assert taken > 0 == failed
    group = node.container()
    assert group["requested_peak"] <= 135 * MIB
    assert shares.usage(share).used_bytes == 0


def test_threads_that_retain_at_once_reserve_one_context(node: Sandbox, clients: Clients) -> None:
    cost = node.context_bytes()
    gpu = node.gpu()
    share = shares.make(node, gpu=gpu, limit=cost + cost // 2, estimate=cost)
    _, refused, failed = run_contexts(node, clients, "primary", threads=8, rounds=20000 // SLOWER)
    assert (refused, failed) == (0, 0)
    assert shares.usage(share).used_bytes == 0
    assert shares.usage(share).denied == 0


def test_kills_at_random_moments_leave_nothing(
    node: Sandbox, share: Path, clients: Clients, start: Start
) -> None:
    hammer = clients.linked("hammer")
    for seed in range(12):
        runs = [node.start(hammer, "4", "1000000", str(8 * MIB), str(seed * 8 + i + 1)) for i in range(3)]
        deadline = time.monotonic() + TIMEOUT_S
        while len([s for s in shares.slots(share) if s.used_bytes]) < len(runs):
            assert time.monotonic() < deadline
        for run in runs:
            run.kill()
        for run in runs:
            ended(run)
    probe = start(node)
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS
    group = node.container()
    assert group["requested_peak"] <= LIMIT
