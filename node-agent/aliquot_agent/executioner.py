# SPDX-License-Identifier: Apache-2.0
"""Ends processes of this node: SIGTERM, and SIGKILL for one that stays, through a pidfd.

A pid may be another process's by the time a signal is sent; a pidfd is not, and the start time shows that it
was opened for the right one.
"""

import logging
import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot_agent import processes

logger = logging.getLogger(__name__)

_IDLE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """One process, not the next with its pid."""

    host_pid: int
    start_ticks: int


@dataclass(slots=True)
class _Sentence:
    pidfd: int
    kill_at_s: float
    asked: bool
    """Whether it was sent SIGTERM."""


class Executioner:
    """The thread that waits for SIGTERM to work. `start`, then `stop`. Thread-safe."""

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._lock = threading.Lock()
        self._condemned: dict[Target, _Sentence] = {}
        self._poll = select.poll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._wake_read, select.POLLIN)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executioner")

    def start(self) -> None:
        """Begins to wait."""
        self._thread.start()

    def stop(self) -> None:
        """Ends; processes that were sent SIGTERM are sent SIGKILL: nobody would do it later."""
        self._stop.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join()
        for sentence in self._condemned.values():
            if sentence.asked:
                _send(sentence.pidfd, signal.SIGKILL)
            os.close(sentence.pidfd)
        self._condemned.clear()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def condemned(self, target: Target) -> bool:
        """Whether the end of a process is under way."""
        with self._lock:
            return target in self._condemned

    def end(self, target: Target, *, grace_s: float, ask: bool = True) -> bool:
        """Ends a process: SIGTERM now where `ask` says so, SIGKILL after the grace; whether it was there."""
        try:
            pidfd = os.pidfd_open(target.host_pid)
        except ProcessLookupError:
            return False
        if processes.start_ticks(target.host_pid, proc=self._proc) != target.start_ticks:
            os.close(pidfd)
            return False
        with self._lock:
            kill_at_s = time.monotonic() + grace_s
            sentence = self._condemned.get(target)
            if sentence is None:
                sentence = self._condemned[target] = _Sentence(pidfd, kill_at_s, asked=False)
                self._poll.register(pidfd, select.POLLIN)
            else:
                os.close(pidfd)
                sentence.kill_at_s = min(sentence.kill_at_s, kill_at_s)
            if ask and not sentence.asked:
                sentence.asked = True
                _send(sentence.pidfd, signal.SIGTERM)
        self._wake()
        return True

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            return  # it is full of wakes already

    def _run(self) -> None:
        while not self._stop.is_set():
            self._step()

    def _step(self) -> None:
        with self._lock:
            due_s = min((each.kill_at_s for each in self._condemned.values()), default=None)
        now_s = time.monotonic()
        wait_s = _IDLE_S if due_s is None else max(0.0, due_s - now_s)
        ready = {fd for fd, _ in self._poll.poll(wait_s * 1000)}
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        now_s = time.monotonic()
        with self._lock:
            for target, sentence in list(self._condemned.items()):
                if sentence.pidfd in ready:
                    self._poll.unregister(sentence.pidfd)
                    os.close(sentence.pidfd)
                    del self._condemned[target]
                elif sentence.kill_at_s <= now_s:
                    _send(sentence.pidfd, signal.SIGKILL)
                    sentence.kill_at_s = now_s + _IDLE_S  # it can only wait for the kernel now
                    logger.warning("process killed", extra={"host_pid": target.host_pid})


def _send(pidfd: int, number: signal.Signals) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return  # it has ended
