# SPDX-License-Identifier: Apache-2.0
"""Locks hold between threads and between processes, and nothing is left of one who was killed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from aliquot_agent.locks import Leadership, Locks

HOLDER = """
import sys
from pathlib import Path
from aliquot_agent.locks import Leadership, Locks
directory, kind = Path(sys.argv[1]), sys.argv[2]
held = Leadership(directory=directory) if kind == "leader" else Locks(directory=directory).of(kind)
held.take(wait=True) if kind == "leader" else held.acquire()
print("held", flush=True)
sys.stdin.read()
"""


class Other:
    """Another agent, which holds something."""

    def __init__(self, directory: Path, kind: str) -> None:
        command = [sys.executable, "-c", HOLDER, str(directory), kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"held\n"

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def test_a_name_is_locked_for_other_threads_and_no_other_name(tmp_path: Path) -> None:
    locks = Locks(directory=tmp_path)
    other = locks.of("b")
    with locks.of("a"):
        assert not locks.of("a").acquire(blocking=False)
        assert other.acquire(blocking=False)
        other.release()
    again = locks.of("a")
    assert again.acquire(blocking=False)
    again.release()


def test_a_name_is_locked_for_other_agents_until_they_are_dead(tmp_path: Path) -> None:
    locks, other = Locks(directory=tmp_path), Other(tmp_path, "a")
    assert not locks.of("a").acquire(blocking=False)
    free = locks.of("b")
    assert free.acquire(blocking=False)
    free.release()
    waited = threading.Event()

    def wait() -> None:
        with locks.of("a"):
            waited.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not waited.wait(0.2)
    other.kill()
    assert waited.wait(10)
    waiter.join()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_waiting_thread_lets_the_others_run(tmp_path: Path) -> None:
    other, locks = Other(tmp_path, "a"), Locks(directory=tmp_path)
    taken = locks.of("a")
    waiter = threading.Thread(target=taken.acquire)
    waiter.start()
    with locks.of("b"):
        pass  # neither the interpreter nor the file is blocked
    other.kill()
    waiter.join(10)
    assert not waiter.is_alive()


def test_one_agent_leads_and_the_next_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    other, ours = Other(tmp_path, "leader"), Leadership(directory=tmp_path)
    assert not ours.take(wait=False)
    other.kill()
    assert ours.take(wait=False)
    assert not Leadership(directory=tmp_path).take(wait=False)
    ours.give_up()
    assert Leadership(directory=tmp_path).take(wait=False)


def test_an_agent_knows_whether_another_one_is_there(tmp_path: Path) -> None:
    locks = Locks(directory=tmp_path)
    assert locks.alone()
    other = Other(tmp_path, "a")
    assert not locks.alone()
    other.kill()
    assert locks.alone()
