# SPDX-License-Identifier: Apache-2.0
"""Death, stop, fork and exec at any moment: the books stay exact and nobody waits."""

import fcntl
import mmap
import os
import random
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, wait_until

STORM_S = float(os.environ.get("ALIQUOT_STORM_S", "4"))
"""Length of each storm; longer before a release."""
STRIDE = int(os.environ.get("ALIQUOT_STEP_STRIDE", "5"))
"""Of all instructions of an operation, every how manieth is a test's moment of death."""
SEED = int(os.environ.get("ALIQUOT_STORM_SEED", "20261129"))


class Counter:
    """A number that storm processes raise (storm.c)."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def value(self) -> int:
        number: int = struct.unpack("<Q", self._map[:8])[0]
        return number

    def wait_for_more(self, rounds: int, what: str) -> None:
        goal = self.value() + rounds
        wait_until(lambda: self.value() >= goal, what)


def test_killed_process_frees_its_memory(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    probe.allocate(1000 * MIB)
    probe.kill()
    assert node.gpu()["used"] == 0
    assert node.group("g")["used"] == 0
    assert node.group("g")["requested"] == 0
    (process,) = node.books()["processes"]
    assert (process["alive"], process["used"], process["peak"]) == (False, 0, CONTEXT + 1000 * MIB)


def test_dead_memory_is_there_for_others_at_once(node: Node) -> None:
    dead = node.probe()
    dead.start()
    survivor = node.probe()
    survivor.start()
    dead.allocate(20000 * MIB)
    assert survivor.code("cuMemAlloc_v2", {"out": 0}, 20000 * MIB) == 2
    dead.kill()
    assert survivor.info()[0] == L4_CAPACITY - CONTEXT
    survivor.allocate(20000 * MIB)


def test_exit_frees_everything(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(1000 * MIB)
    probe.end()
    assert node.gpu()["used"] == 0


def test_exec_frees_everything(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(1000 * MIB)
    probe.exec()
    probe.start()
    assert probe.info()[0] == L4_CAPACITY - CONTEXT, "same pid, but not the process that allocated"
    assert node.gpu()["used"] == CONTEXT


def test_forked_child_has_no_driver_but_may_read_nvml(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("nvmlInit_v2") == 0
    for request in (("cuInit", 0), ("cuMemAlloc_v2", {"out": 7}, 1), ("cuDeviceGetCount", {"out": 7})):
        answer = probe.call("in_fork", *request)
        assert (answer.code, answer.outputs) == (3, [7] * len(answer.outputs))
    assert probe.call("in_fork", "nvmlDeviceGetCount_v2", {"out": 0}).outputs == [1]
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemFree_v2", probe.allocate(1)) == 0


def test_fork_before_init_is_free(node: Node) -> None:
    probe = node.probe()
    assert probe.code("in_fork", "cuInit", 0) == 0
    probe.start()


def test_a_child_does_not_keep_its_dead_parents_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(1000 * MIB)
    child = probe.call("fork_sleeper").outputs[0]
    probe.kill()
    try:
        assert node.gpu()["used"] == 0
    finally:
        os.kill(child, signal.SIGKILL)


def test_closing_all_descriptors_is_not_death(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(1000 * MIB)
    probe.code("close_descriptors")
    assert node.gpu()["used"] == CONTEXT + 1000 * MIB
    probe.allocate(1000 * MIB)
    other = node.probe()
    other.start()
    assert other.info()[0] == L4_CAPACITY - 2 * CONTEXT - 2000 * MIB
    probe.kill()
    assert other.info()[0] == L4_CAPACITY - CONTEXT


def test_nvml_shutdown_does_not_end_the_driver(node: Node) -> None:
    probe = node.probe()
    probe.start()
    for _ in range(2):
        assert probe.code("nvmlInit_v2") == 0
        assert probe.code("nvmlShutdown") == 0
    # Closing any descriptor of the state would drop the lock that shows the process's host pid.
    with (node.root / "state").open("rb") as state:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1, 1, 0)
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(state, fcntl.F_GETLK, asked))
    assert (answer[0], answer[4]) == (fcntl.F_WRLCK, probe.popen.pid)


def test_pids_are_those_of_the_readers_namespace(node: Node) -> None:
    inside = node.probe("unshare", "-pf", "--mount-proc", "--kill-child")
    inside.start()
    inside.allocate(64 * MIB)
    outside = node.probe()
    outside.start()
    books = {process["namespace_pid"]: process for process in node.books()["processes"]}
    children = Path(f"/proc/{inside.popen.pid}/task/{inside.popen.pid}/children").read_text().split()
    assert books[inside.own_pid]["pid"] == int(children[0])
    assert inside.own_pid == 1
    assert inside.listed() == [(1, CONTEXT + 64 * MIB)], "others are out of sight"
    assert outside.listed() == sorted([(int(children[0]), CONTEXT + 64 * MIB), (outside.popen.pid, CONTEXT)])
    assert len({process["group"] for process in books.values()}) == 2, "each mount namespace is a group"


def test_a_slots_next_process_has_nothing_to_do_with_its_last(node: Node) -> None:
    """A meter remembers its last writer by slot: that must end with the writer's life."""
    first = node.probe(group="one")
    first.start()
    neighbour = node.probe(group="two")
    neighbour.start()
    heir_of_group = node.probe(group="one")
    heir_of_group.start()
    first.allocate(PAGE)
    first.end()  # last writer of group one's meters, by its slot
    second = node.probe(group="two")  # in the same slot
    second.start()
    second.allocate(100 * MIB)
    neighbour.allocate(PAGE)
    heir_of_group.allocate(PAGE)
    second.kill()
    assert node.group("two")["used"] == CONTEXT + PAGE
    assert node.group("two")["requested"] == PAGE


@pytest.mark.parametrize(
    ("operation", "fate"),
    [
        ("alloc", "walk"),
        ("free", "walk"),
        ("share", "walk"),
        ("unshare", "walk"),
        ("alloc", "kill"),
        ("free", "kill"),
        ("share", "kill"),
        ("unshare", "kill"),
        ("sweep", "overtake"),
    ],
)
def test_any_single_instruction_may_be_the_last(node: Node, steps: Path, operation: str, fate: str) -> None:
    """Stopped between instructions of an operation, with work beside it; then it goes on, or is killed."""
    stride = STRIDE * {"sweep": 4, "share": 16, "unshare": 16}.get(operation, 1)
    first = random.Random(SEED).randrange(stride)
    options = [] if fate == "walk" else [str(first), str(stride)]
    command = [str(steps), operation, fate, *options]
    ended = subprocess.run(
        command, env=node.environment(ALIQUOT_SIM_GROUP="g"), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 100, "the operation was not stepped through"
    assert node.gpu()["used"] == 0
    group = node.group("g")
    assert (group["used"], group["requested"]) == (0, 0)
    assert group["requested_peak"] <= 150 * MIB
    assert group["peak"] <= 3 * CONTEXT + 150 * MIB


def test_slots_are_used_again(node: Node, storm: Path) -> None:
    environment = node.environment()
    for _ in range(60):
        batch = [subprocess.Popen([storm, "1", "16", "20"], env=environment) for _ in range(8)]
        assert [process.wait() for process in batch] == [0] * 8
    assert node.gpu()["used"] == 0
    assert len(node.books()["processes"]) <= 16, "dead slots have piled up"


def test_many_processes_at_once(node: Node, storm: Path) -> None:
    """More contexts than the card has room for: some are refused cleanly, the others do their work."""
    keeper = node.probe()
    keeper.start()
    keeper.allocate(L4_CAPACITY - 10 * CONTEXT)
    environment = node.environment(ALIQUOT_SIM_GROUP="g")
    command = [str(storm), "2", "16", "300"]
    batch = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(100)
    ]
    ended = [(process.communicate()[1], process.returncode) for process in batch]
    assert set(ended) <= {("", 0), ("storm: start: 2\n", 1)}
    assert ("", 0) in ended
    assert node.gpu()["peak"] <= L4_CAPACITY
    assert node.group("g")["used"] == 0


def test_groups_are_forgotten_when_all_are_taken(node: Node, storm: Path) -> None:
    keeper = node.probe(group="keeper")
    keeper.start()
    for first in range(0, 600, 4):
        batch = [
            subprocess.Popen(
                [storm, "1", "1", "1"], env=node.environment(ALIQUOT_SIM_GROUP=f"group-{number}")
            )
            for number in range(first, first + 4)
        ]
        assert [process.wait() for process in batch] == [0] * 4
    assert node.group("keeper")["used"] == CONTEXT
    assert node.group("group-599")["peak"] >= CONTEXT


def test_kill_storm_leaves_exact_books(node: Node, storm: Path, tmp_path: Path) -> None:
    """At most WORKERS processes live at any instant, each within its allowance: so must be the peaks."""
    workers, allowance = 6, 700 * MIB
    dice = random.Random(SEED)
    counter = Counter(tmp_path / "counter")
    environment = node.environment(ALIQUOT_SIM_GROUP="storm")
    command = [str(storm), "3", str(allowance // MIB), "0", str(counter.path)]
    running = [subprocess.Popen(command, env=environment) for _ in range(workers)]
    deadline = time.monotonic() + STORM_S
    kills = 0
    while time.monotonic() < deadline:
        victim = dice.randrange(workers)
        counter.wait_for_more(dice.randrange(1, 400), "progress")
        running[victim].kill()
        assert running[victim].wait() == -signal.SIGKILL
        running[victim] = subprocess.Popen(command, env=environment)
        kills += 1
    books = node.books()
    group = node.group("storm")
    for process in running:
        process.kill()
        process.wait()
    # Rounding: 3 threads hold at most 16 blocks each, each up to a page larger than asked for.
    assert kills > 20
    assert group["requested_peak"] <= workers * allowance
    assert group["peak"] <= workers * (CONTEXT + allowance + 3 * 16 * PAGE)
    assert books["gpus"][0]["peak"] <= L4_CAPACITY
    assert node.gpu()["used"] == 0
    assert node.group("storm")["used"] == 0
    assert node.group("storm")["requested"] == 0


def test_a_full_gpu_under_a_kill_storm_never_holds_too_much(node: Node, storm: Path) -> None:
    workers = 8
    dice = random.Random(SEED)
    command = [str(storm), "2", "8000", "0"]
    running = [subprocess.Popen(command, env=node.environment()) for _ in range(workers)]
    deadline = time.monotonic() + STORM_S
    while time.monotonic() < deadline:
        victim = dice.randrange(workers)
        running[victim].kill()
        running[victim].wait()
        running[victim] = subprocess.Popen(command, env=node.environment())
        gpu = node.gpu()
        assert gpu["used"] <= gpu["peak"] <= L4_CAPACITY
    for process in running:
        process.kill()
        process.wait()
    assert node.gpu()["peak"] > L4_CAPACITY - 2000 * MIB, "the card was never near full: no test"
    assert node.gpu()["used"] == 0


@pytest.mark.parametrize("threads", [1, 4], ids=["one-thread", "four-threads"])
def test_a_stopped_process_blocks_nobody(node: Node, storm: Path, tmp_path: Path, threads: int) -> None:
    """Stopped at random moments, that is between any two instructions of an operation."""
    stopped_counter = Counter(tmp_path / "stopped")
    running_counter = Counter(tmp_path / "running")
    environment = node.environment(ALIQUOT_SIM_GROUP="g")
    stopped = subprocess.Popen([storm, str(threads), "500", "0", stopped_counter.path], env=environment)
    running = subprocess.Popen([storm, str(threads), "500", "0", running_counter.path], env=environment)
    dice = random.Random(SEED)
    wait_until(lambda: min(stopped_counter.value(), running_counter.value()) > 0, "both at work")
    deadline = time.monotonic() + STORM_S / 2
    stops = 0
    try:
        while time.monotonic() < deadline:
            stopped.send_signal(signal.SIGSTOP)
            running_counter.wait_for_more(2000, "others while one is stopped")
            assert node.gpu()["used"] >= 2 * CONTEXT
            stopped.send_signal(signal.SIGCONT)
            stopped_counter.wait_for_more(dice.randrange(300), "it goes on")
            stops += 1
    finally:
        for process in (stopped, running):
            process.kill()
            process.wait()
    assert stops > 10
    assert node.group("g")["requested_peak"] <= 1000 * MIB
    assert node.gpu()["used"] == 0
    assert node.group("g")["requested"] == 0
