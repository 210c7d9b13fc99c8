# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot_agent import processes
from aliquot_agent.executioner import Executioner, Target

SLEEP = "import time; print('ready', flush=True); time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"


@pytest.fixture
def executioner() -> Iterator[Executioner]:
    executioner = Executioner()
    executioner.start()
    yield executioner
    executioner.stop()


def victim(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def target(process: subprocess.Popen[bytes]) -> Target:
    start_ticks = processes.start_ticks(process.pid)
    assert start_ticks is not None
    return Target(host_pid=process.pid, start_ticks=start_ticks)


def test_a_process_is_asked_first(executioner: Executioner) -> None:
    process = victim(SLEEP)
    assert executioner.end(target(process), grace_s=30)
    assert process.wait(timeout=10) == -signal.SIGTERM


def test_one_that_stays_is_killed_after_the_grace(executioner: Executioner) -> None:
    process = victim(DEAF)
    began_s = time.monotonic()
    assert executioner.end(target(process), grace_s=0.3)
    assert executioner.condemned(target(process))
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert time.monotonic() - began_s >= 0.3


def test_without_asking_only_the_grace_counts(executioner: Executioner) -> None:
    process = victim(SLEEP)
    assert executioner.end(target(process), grace_s=0.2, ask=False)
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_an_earlier_end_wins(executioner: Executioner) -> None:
    process = victim(DEAF)
    executioner.end(target(process), grace_s=60, ask=False)
    executioner.end(target(process), grace_s=0.1)
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_the_next_process_with_its_pid_is_spared(executioner: Executioner) -> None:
    process = victim(SLEEP)
    right = target(process)
    assert not executioner.end(Target(process.pid, right.start_ticks - 1), grace_s=0)
    assert process.poll() is None
    process.kill()
    process.wait(timeout=10)
    assert not executioner.end(right, grace_s=0)


def test_an_agent_that_ends_finishes_what_it_began_and_no_more() -> None:
    executioner = Executioner()
    executioner.start()
    asked, waiting = victim(DEAF), victim(DEAF)
    executioner.end(target(asked), grace_s=60)
    executioner.end(target(waiting), grace_s=60, ask=False)
    before = len(os.listdir("/proc/self/fd"))
    executioner.stop()
    assert asked.wait(timeout=10) == -signal.SIGKILL
    assert waiting.poll() is None
    waiting.kill()
    waiting.wait(timeout=10)
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_process_that_died_is_forgotten(executioner: Executioner, tmp_path: Path) -> None:
    process = victim(SLEEP)
    right = target(process)
    executioner.end(right, grace_s=30)
    process.wait(timeout=10)
    deadline_s = time.monotonic() + 10
    while executioner.condemned(right):
        assert time.monotonic() < deadline_s
