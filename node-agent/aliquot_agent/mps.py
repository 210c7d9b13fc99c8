# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's MPS on one GPU: the control daemon with its directories, and what its clients are told.

One daemon per GPU with a pipe directory of its own, which the GPU's containers see. The directory outlives a
lost daemon: running containers have it mounted, and their next programs find the new daemon there.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from aliquot_agent.checkpoint import PreparedShare
from aliquot_agent.errors import ToolFailed
from aliquot_agent.smi import run
from aliquot_api.names import CONTAINER_MPS_DIR
from aliquot_api.quantity import MIB

PIPE: Final = "pipe"
_LOG: Final = "log"
_ANSWER_S: Final = 5.0
_START_S: Final = 20.0
_END_S: Final = 5.0
_LOOK_S: Final = 0.05
_ASK_EACH_S: Final = 5.0
_ANY_USER: Final = 0o1777


class Daemon:
    """The daemon of one GPU, in `directory`. `start`, then `stop`."""

    def __init__(
        self, *, gpu_uuid: str, directory: Path, control: str, memory: Path = Path("/dev/shm")
    ) -> None:
        self._gpu_uuid = gpu_uuid
        self._directory = directory
        self._control = control
        self._memory = memory
        self._asked_s = 0.0
        self._pids: tuple[int, ...] = ()

    def start(self) -> None:
        """Returns when it answers. Raises ToolFailed, OSError."""
        for name in (PIPE, _LOG):
            path = self._directory / name
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(_ANY_USER)
        self._memory.chmod(_ANY_USER)
        # -M: one server for the programs of all users, who are different tenants.
        run([self._control, "-d", "-M"], timeout_s=_START_S, environment=self._environment())
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if time.monotonic() > deadline:
                raise ToolFailed(f"the MPS daemon of {self._gpu_uuid} does not answer; {self._last_words()}")
            time.sleep(_LOOK_S)
        self._asked_s = time.monotonic()
        self._pids = tuple(self._processes(os.listdir("/proc")))

    def began(self) -> bool:
        """Whether it was started since the node booted, by whomever, and not removed."""
        return self._directory.exists()

    def lives(self) -> bool:
        """Whether it runs, and (asked now and then) answers."""
        if not any(self._processes(map(str, self._pids))):
            return False
        if time.monotonic() - self._asked_s < _ASK_EACH_S:
            return True
        answers = self._answers()
        self._asked_s = time.monotonic()
        return answers

    def stop(self) -> None:
        """Ends it and its server, hung ones too. Raises ToolFailed when they stay."""
        with suppress(ToolFailed):
            self._ask("quit -t 1")
        deadline = time.monotonic() + _END_S
        while pids := list(self._processes(os.listdir("/proc"))):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise ToolFailed(f"MPS processes {pids} of {self._gpu_uuid} do not end")
            time.sleep(_LOOK_S)

    def remove(self) -> None:
        """Its directories go: nobody has them mounted any more."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ask(self, command: str) -> str:
        return run(
            [self._control], timeout_s=_ANSWER_S, given=f"{command}\n", environment=self._environment()
        )

    def _answers(self) -> bool:
        try:
            self._ask("get_server_list")
        except ToolFailed:
            return False
        return True

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": self._gpu_uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self._directory / PIPE),
            "CUDA_MPS_LOG_DIRECTORY": str(self._directory / _LOG),
        }

    def _processes(self, names: Iterable[str]) -> Iterator[int]:
        """The daemon and its server among these: by the environment, which names this GPU's directory."""
        mark = f"CUDA_MPS_PIPE_DIRECTORY={self._directory / PIPE}".encode()
        for name in names:
            if not name.isdecimal() or int(name) == os.getpid():
                continue
            with suppress(OSError):
                entry = Path("/proc", name)
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(name)

    def _last_words(self) -> str:
        try:
            lines = (self._directory / _LOG / "control.log").read_text(errors="replace").splitlines()
        except OSError:
            return "it has written no log"
        return f"its log ends with: {' | '.join(lines[-3:])}"


def environment(share: PreparedShare) -> list[str]:
    """What the programs of a share are told. Limits of each process; the ledger holds the share's total."""
    limits = [
        f"CUDA_MPS_PIPE_DIRECTORY={CONTAINER_MPS_DIR}",
        f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={share.memory_bytes // MIB}M",
    ]
    if share.cores_percent:
        limits.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={share.cores_percent}")
    return limits
