# SPDX-License-Identifier: Apache-2.0
"""All families of memory at once, in many threads and processes, some of which are killed."""

import random
import signal
import subprocess
import time
from pathlib import Path

from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, Node
from shim.sim.tests.test_sim_processes import SEED, STORM_S, Counter


def test_threads_leave_nothing_behind(node: Node, families: Path) -> None:
    process = subprocess.Popen(
        [families, "4", "500"],
        env=node.environment(ALIQUOT_SIM_GROUP="g"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "done\n"
    assert node.group("g")["used"] == CONTEXT
    assert node.group("g")["requested"] == 0
    assert node.books()["shared"] == []
    process.communicate("\n")
    assert process.returncode == 0
    assert node.gpu()["used"] == 0
    assert node.gpu()["peak"] <= L4_CAPACITY


def test_killed_at_any_moment_they_leave_nothing_behind(node: Node, families: Path, tmp_path: Path) -> None:
    """On a card that is nearly full, so that memory is refused, reclaimed and swept all the time."""
    keeper = node.probe(group="keeper")
    keeper.start()
    kept = L4_CAPACITY - 10000 * MIB
    keeper.allocate(kept)
    dice = random.Random(SEED)
    counter = Counter(tmp_path / "counter")
    command = [str(families), "2", "0", str(counter.path)]
    environment = node.environment(ALIQUOT_SIM_GROUP="storm")
    running = [subprocess.Popen(command, env=environment) for _ in range(6)]
    deadline = time.monotonic() + STORM_S
    kills = 0
    while time.monotonic() < deadline:
        victim = dice.randrange(len(running))
        counter.wait_for_more(dice.randrange(1, 100), "progress")
        running[victim].kill()
        assert running[victim].wait() == -signal.SIGKILL, "it ended by itself"
        running[victim] = subprocess.Popen(command, env=environment)
        kills += 1
    for process in running:
        process.kill()
        process.wait()
    assert kills > 5
    assert node.gpu()["used"] == CONTEXT + kept
    assert node.gpu()["peak"] <= L4_CAPACITY
    assert node.group("storm")["used"] == node.group("storm")["requested"] == 0
    assert node.books()["shared"] == []
