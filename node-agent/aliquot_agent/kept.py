# SPDX-License-Identifier: Apache-2.0
"""What the keeper of sharing says about each GPU: one small file per GPU that is not in its plain state.

The keeper is a process of its own; these files and the checkpoints are all that it and the agent share. A
file is written before the GPU is touched and removed after it is plain again, so whoever starts after a crash
finds what to undo. Files count while the keeper that wrote them holds its lock.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from aliquot_agent import files, held
from aliquot_agent.checkpoint import PreparedShare
from aliquot_agent.errors import Refused
from aliquot_api import modes
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode

_LOCK: Final = "keeper.lock"
_SUFFIX: Final = ".json"
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Kept:
    """One GPU."""

    mode: Mode
    """What it is made, or was being made."""
    problem: str = ""
    """Why it is not that yet; empty: it is."""
    lost: int = 0
    """How often the GPU's MPS daemon was lost since it is shared by MPS."""


class Register:
    """The keeper's files. `claim` once."""

    def __init__(self, *, directory: Path) -> None:
        self._directory = directory
        self._token = ""
        self._fd = -1

    def claim(self) -> bool:
        """Becomes the keeper that these files are of; False while another one lives."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._directory / _LOCK, flags, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._token = secrets.token_hex(8)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, self._token.encode(), 0)
        return True

    def release(self) -> None:
        """Lets another one be it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def write(self, gpu_uuid: str, kept: Kept) -> None:
        """Says it. Raises OSError."""
        body = {
            "keeper": self._token,
            "mode": str(kept.mode),
            "problem": kept.problem,
            "lost": kept.lost,
        }
        files.write_atomic(self._path(gpu_uuid), json.dumps(body).encode(), mode=0o600)

    def remove(self, gpu_uuid: str) -> None:
        """The GPU is plain again."""
        files.remove(self._path(gpu_uuid))

    def left(self) -> dict[str, Kept]:
        """What this keeper, or one before it, made of GPUs and has not undone."""
        found = {path.stem: _decode(path) for path in self._directory.glob(f"*{_SUFFIX}")}
        return {gpu_uuid: kept[0] for gpu_uuid, kept in found.items() if kept is not None}

    def _path(self, gpu_uuid: str) -> Path:
        return self._directory / f"{gpu_uuid}{_SUFFIX}"


class Ways:
    """The agent's look at the keeper's files."""

    def __init__(self, *, directory: Path, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._monotonic_s = monotonic_s

    def kept(self, gpu_uuid: str) -> Kept | None:
        """What is said of a GPU; None: nothing, it is in its plain state."""
        path = f"{self._directory}/{gpu_uuid}{_SUFFIX}"
        # In every Prepare: without pathlib's layers.
        found = _decode(Path(path)) if os.path.exists(path) else None
        if found is None:
            return None
        kept, token = found
        if token != self._living():
            return replace(kept, problem="the container `sharing` of the agent's pod does not run")
        return kept

    def await_all(self, shares: Iterable[PreparedShare], deadline_s: float) -> None:
        """Until each GPU is shared as its share wants it. Raises Refused when that takes too long."""
        for share in shares:
            wanted = held.mode_of(share)
            while (problem := self._problem(share.gpu_uuid, wanted)) is not None:
                if self._monotonic_s() + _LOOK_S > deadline_s:
                    raise Refused(f"GPU {share.gpu_uuid} is not ready for sharing {wanted}: {problem}")
                time.sleep(_LOOK_S)

    def _problem(self, gpu_uuid: str, wanted: Mode) -> str | None:
        kept = self.kept(gpu_uuid)
        if kept is None:
            if wanted == modes.SHIM:
                return None
            who = "has not taken it up yet" if self._living() else "does not run"
            return f"the container `sharing` of the agent's pod {who}"
        if kept.mode != wanted:
            return f"it is still set up for {kept.mode}"
        return kept.problem or None

    def _living(self) -> str:
        """The token of the keeper that runs; empty: none does."""
        try:
            fd = os.open(self._directory / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return ""
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(fd, 64).decode(errors="replace")
        finally:
            os.close(fd)
        return ""


def _decode(path: Path) -> tuple[Kept, str] | None:
    """A file and whose it is; None: there is none. One that cannot be read says what to do about it."""
    try:
        body = json.loads(path.read_bytes())
        kept = Kept(
            mode=modes.parse(body["mode"], field="mode"),
            problem=str(body["problem"]),
            lost=int(body.get("lost", 0)),
        )
        return kept, str(body["keeper"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
        return Kept(mode=modes.MPS, problem=f"{path.name} cannot be read: {error}"), ""
