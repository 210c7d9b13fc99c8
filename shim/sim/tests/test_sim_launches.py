# SPDX-License-Identifier: Apache-2.0
"""Many threads and processes launch at once; some are stopped, some killed: the others' time stays theirs."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from shim.sim.tests.simnode import Node, wait_until
from shim.sim.tests.test_sim_compute import function, launch, load

STORM_S = float(os.environ.get("ALIQUOT_STORM_S", "4"))


def start(node: Node, program: Path, threads: int, seconds: float) -> subprocess.Popen[str]:
    command = [str(program), str(threads), str(int(seconds))]
    return subprocess.Popen(command, env=node.environment(), stdout=subprocess.PIPE, text=True)


def test_processes_of_many_threads_get_equal_parts(node: Node, launches: Path) -> None:
    running = [start(node, launches, 4, STORM_S) for _ in range(3)]
    counts = [int(process.communicate(timeout=120)[0]) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert min(counts) > 0.6 * max(counts)


def test_nobody_waits_for_the_stopped_and_the_killed(node: Node, launches: Path) -> None:
    dice = random.Random(os.environ.get("ALIQUOT_STORM_SEED", "1"))
    witness = node.probe()
    witness.start()
    kernel = function(witness, load(witness), "spin_1ms")
    running: list[subprocess.Popen[str]] = []
    end = time.monotonic() + STORM_S
    while time.monotonic() < end:
        while len(running) < 4:
            running.append(start(node, launches, 2, 60))
        victim = running.pop(0)
        if dice.random() < 0.5:
            victim.send_signal(signal.SIGSTOP)
        before = time.monotonic()
        assert launch(witness, kernel) == 0
        assert witness.code("cuCtxSynchronize") == 0
        assert time.monotonic() - before < 5, "a kernel of 1 ms among four other processes"
        victim.kill()
        victim.communicate()
    for process in running:
        process.kill()
        process.communicate()
    wait_until(lambda: len(node.books()["processes"]) == 1 or alive(node) == 1, "the end of the dead")
    before = time.monotonic()
    assert launch(witness, kernel) == 0
    assert witness.code("cuCtxSynchronize") == 0
    assert time.monotonic() - before < 2


def alive(node: Node) -> int:
    return sum(process["alive"] for process in node.books()["processes"])
