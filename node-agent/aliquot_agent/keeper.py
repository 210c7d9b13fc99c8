# SPDX-License-Identifier: Apache-2.0
"""Brings each GPU to the way of sharing that its prepared shares want, and back when they are gone.

A process of its own, in a container of its own (`aliquot-agent keep-sharing`): MPS daemons are its children
and outlive the agent's restarts, and the right to change the driver's settings stays with it. It derives
everything from the agent's checkpoints and says what it did in files (`kept`); nobody calls it. The daemons
die with its container, so when its pod is replaced it goes on until no program needs one. When it ends, the
GPUs are plain again.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from aliquot_agent import held
from aliquot_agent.checkpoint import Checkpoints
from aliquot_agent.errors import ToolFailed
from aliquot_agent.kept import Kept, Register
from aliquot_agent.smi import DriverTool
from aliquot_api import modes
from aliquot_api.config import Sharing, TimeSlice
from aliquot_api.modes import Mode

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 0.2
_AGAIN_S: Final = 2.0
_COARSE_NS: Final = 1_000_000_000
"""Two changes of a directory in so short a time may bear one time stamp."""


class MpsDaemon(Protocol):
    """The daemon of a GPU (mps.Daemon)."""

    def start(self) -> None:
        """Returns when it answers."""

    def began(self) -> bool:
        """Whether it was started since the node booted, by whomever, and not removed."""

    def lives(self) -> bool:
        """Whether it runs and answers."""

    def stop(self) -> None:
        """Ends it."""

    def remove(self) -> None:
        """Its directories go."""


@dataclass(slots=True)
class _Gpu:
    """What was done to a GPU."""

    mode: Mode
    settled: bool
    problem: str = ""
    again_s: float = 0.0
    lost: int = 0
    """How often its daemon was lost in this mode."""


class Keeper:
    """`run`, until `end`."""

    def __init__(
        self,
        *,
        register: Register,
        checkpoints: Checkpoints,
        tool: DriverTool,
        daemon_of: Callable[[str], MpsDaemon],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._register = register
        self._checkpoints = checkpoints
        self._tool = tool
        self._daemon_of = daemon_of
        self._monotonic_s = monotonic_s
        self._daemons: dict[str, MpsDaemon] = {}
        self._gpus: dict[str, _Gpu] = {}
        self._leading = False
        self._seen: tuple[int, Mapping[str, Mode]] = (-1, {})
        self._ended = False

    def run(self) -> None:
        """Works until `end`, and then as long as an MPS daemon is needed; every GPU is made plain at last.

        While another keeper lives (a rolling update), this one waits.
        """
        told = False
        while not self._ended or self._needed():
            if self._ended and not told:
                logger.info("asked to end: going on until the last share by MPS has ended")
                told = True
            self.step()
            time.sleep(_PERIOD_S)
        self.close()

    def end(self) -> None:
        """Makes `run` return when no MPS daemon is needed; safe in a signal handler."""
        self._ended = True

    def _needed(self) -> bool:
        """Whether a daemon serves that would end with this process."""
        return any(gpu.settled and gpu.mode == modes.MPS for gpu in self._gpus.values())

    def close(self) -> None:
        """Makes every GPU plain and lets another keeper work."""
        if self._leading:
            for gpu_uuid in list(self._gpus):
                self._bring(gpu_uuid, modes.SHIM, keep_directories=True)
        self._register.release()

    def step(self) -> None:
        """One look at the checkpoints and the daemons."""
        if not self._leading:
            if not self._register.claim():
                return
            self._leading = True
            self._gpus = {gpu: self._left(gpu, kept) for gpu, kept in self._register.left().items()}
        wanted = self._wanted()
        for gpu_uuid in sorted({*wanted, *self._gpus}):
            self._bring(gpu_uuid, wanted.get(gpu_uuid, modes.SHIM))

    def _left(self, gpu_uuid: str, kept: Kept) -> _Gpu:
        """A GPU of a keeper that did not end in order: its daemon ended with it."""
        lost = kept.mode == modes.MPS and self._daemon(gpu_uuid).began()
        return _Gpu(mode=kept.mode, settled=False, lost=kept.lost + int(lost))

    def _wanted(self) -> Mapping[str, Mode]:
        """What the shares on each GPU want, but for plain ones."""
        try:
            changed_ns = Path(self._checkpoints.directory).stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        fresh = time.time_ns() - changed_ns < _COARSE_NS
        if changed_ns != self._seen[0] or fresh:
            wanted = {
                share.gpu_uuid: held.mode_of(share)
                for claim in self._checkpoints.peek()
                for share in claim.shares
                if not share.whole and held.mode_of(share) != modes.SHIM
            }
            self._seen = (changed_ns, wanted)
        return self._seen[1]

    def _bring(self, gpu_uuid: str, wanted: Mode, *, keep_directories: bool = False) -> None:
        gpu = self._gpus.setdefault(gpu_uuid, _Gpu(mode=modes.SHIM, settled=True))
        if gpu.settled and gpu.mode == wanted == modes.MPS and not self._daemon(gpu_uuid).lives():
            gpu.settled, gpu.lost = False, gpu.lost + 1
            logger.error("MPS daemon was lost; its tenants' programs have failed", extra={"gpu": gpu_uuid})
        if gpu.settled and gpu.mode == wanted:
            return
        if self._monotonic_s() < gpu.again_s and not keep_directories:
            return
        try:
            self._change(gpu_uuid, gpu, wanted, keep_directories=keep_directories)
        except (ToolFailed, OSError) as error:
            gpu.settled, gpu.again_s = False, self._monotonic_s() + _AGAIN_S
            if str(error) != gpu.problem:
                logger.error("GPU is not set up", extra={"gpu": gpu_uuid, "error": str(error)})
            gpu.problem = str(error)
            with suppress(OSError):  # a full disk must not end the daemons of running programs
                self._register.write(gpu_uuid, Kept(gpu.mode, gpu.problem, gpu.lost))

    def _change(self, gpu_uuid: str, gpu: _Gpu, wanted: Mode, *, keep_directories: bool) -> None:
        """The file tells at each moment what the GPU may be."""
        if gpu.mode != wanted:
            if gpu.mode != modes.SHIM:
                doing = Kept(gpu.mode, f"being changed to {wanted}", gpu.lost)
                self._register.write(gpu_uuid, doing)
                self._undo(gpu_uuid, gpu.mode, keep_directories=keep_directories)
            gpu.mode, gpu.settled, gpu.lost = wanted, False, 0
        if wanted == modes.SHIM:
            self._register.remove(gpu_uuid)
            self._gpus.pop(gpu_uuid, None)
            self._daemons.pop(gpu_uuid, None)
        else:
            self._register.write(gpu_uuid, Kept(wanted, "being set up", gpu.lost))
            self._do(gpu_uuid, wanted)
            gpu.settled, gpu.problem = True, ""
            self._register.write(gpu_uuid, Kept(wanted, lost=gpu.lost))
        logger.info("GPU is set up", extra={"gpu": gpu_uuid, "sharing": str(wanted)})

    def _do(self, gpu_uuid: str, mode: Mode) -> None:
        if mode.sharing is Sharing.TIMESLICE:
            self._tool.set_time_slice(gpu_uuid, mode.time_slice or TimeSlice.DEFAULT)
            return
        self._daemon(gpu_uuid).stop()  # a lost or hung one, or what is left of it
        self._tool.set_exclusive(gpu_uuid, on=True)
        self._daemon(gpu_uuid).start()

    def _undo(self, gpu_uuid: str, mode: Mode, *, keep_directories: bool) -> None:
        if mode.sharing is Sharing.TIMESLICE:
            self._tool.set_time_slice(gpu_uuid, TimeSlice.DEFAULT)
            return
        daemon = self._daemon(gpu_uuid)
        daemon.stop()
        self._tool.set_exclusive(gpu_uuid, on=False)
        if not keep_directories:  # containers that still run have them mounted
            daemon.remove()

    def _daemon(self, gpu_uuid: str) -> MpsDaemon:
        return self._daemons.setdefault(gpu_uuid, self._daemon_of(gpu_uuid))
