# SPDX-License-Identifier: Apache-2.0
"""Drives clients/probe.c: one driver call after another in a process of its own."""

import os
import select
import signal
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from shim.tests.sandbox import TIMEOUT_S, Sandbox

SUCCESS: Final = 0
INVALID_VALUE: Final = 1
OUT_OF_MEMORY: Final = 2
NOT_INITIALIZED: Final = 3
NO_DEVICE: Final = 100
UNSUPPORTED_LIMIT: Final = 215
NOT_PERMITTED: Final = 800
NOT_SUPPORTED: Final = 801
NVML_NO_PERMISSION: Final = 4
NVML_INSUFFICIENT_SIZE: Final = 7

_UNTOUCHED: Final = 0xA5A5A5A5A5A5A5A5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gave: its result, and the cells that it wrote."""

    result: int
    cells: dict[int, int]


class Probe:
    """A process under (or without) the shim. Use as a context manager."""

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        program: str,
        bare: bool = False,
        new_pids: bool = False,
        libraries: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self._process = sandbox.start(program, *libraries, bare=bare, new_pids=new_pids, env=env)
        self._unread = b""

    @property
    def pid(self) -> int:
        """Host pid: the launcher has replaced itself by the probe."""
        return self._process.pid

    def send(self, line: str) -> None:
        """Sends a command without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def receive(self) -> str:
        """The next answer; fails after a deadline or when the process has ended."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([pipe], [], [], TIMEOUT_S)
            got = os.read(pipe, 1 << 16) if ready else b""
            if not got:
                self._process.kill()
                _, errors = self._process.communicate()
                raise AssertionError(f"probe gave no answer; status {self._process.returncode}: {errors}")
            self._unread += got
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().strip()

    def command(self, line: str) -> str:
        """One command, one answer."""
        self.send(line)
        return self.receive()

    def call(self, symbol: str, *arguments: int | str) -> Answer:
        """Calls `symbol`; cells start untouched."""
        text = self.command(" ".join([symbol, *map(str, arguments)]))
        first, *changes = text.split()
        assert first.lstrip("-").isdigit(), f"{symbol}: {text}"
        cells = {int(cell): int(value) for cell, _, value in (change.partition("=") for change in changes)}
        return Answer(int(first), cells)

    def reset(self, cell: int) -> None:
        """Makes a cell look untouched again."""
        self.command(f"!set {cell} {_UNTOUCHED}")

    def ok(self, symbol: str, *arguments: int | str) -> Answer:
        """A call that must succeed."""
        answer = self.call(symbol, *arguments)
        assert answer.result == SUCCESS, f"{symbol}{arguments}: {answer.result}"
        return answer

    def begin(self, device: int = 0) -> int:
        """cuInit and a primary context, made current; its handle."""
        self.ok("cuInit", 0)
        self.reset(0)
        context = self.ok("cuDevicePrimaryCtxRetain", "&0", device).cells[0]
        self.ok("cuCtxSetCurrent", context)
        return context

    def alloc(self, size: int) -> tuple[int, int]:
        """cuMemAlloc_v2: result and pointer (0 if none)."""
        self.reset(1)
        answer = self.call("cuMemAlloc_v2", "&1", size)
        assert (answer.result == SUCCESS) == (1 in answer.cells), "an output is written on success only"
        return answer.result, answer.cells.get(1, 0)

    def free(self, pointer: int) -> int:
        """cuMemFree_v2."""
        return self.call("cuMemFree_v2", pointer).result

    def info(self) -> tuple[int, int]:
        """cuMemGetInfo_v2: free, total."""
        self.reset(2)
        self.reset(3)
        cells = self.ok("cuMemGetInfo_v2", "&2", "&3").cells
        return cells[2], cells[3]

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """Sends a signal; after SIGKILL waits for the end."""
        self._process.send_signal(sig)
        if sig == signal.SIGKILL:
            self._process.wait(TIMEOUT_S)

    def finish(self) -> tuple[int, str, str]:
        """Ends it in peace: status, rest of stdout, stderr."""
        out, errors = self._process.communicate(timeout=TIMEOUT_S)
        return self._process.returncode, out, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self._process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Waits for a started program: status, stdout, stderr."""
    out, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, errors
