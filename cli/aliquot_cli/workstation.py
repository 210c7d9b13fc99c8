# SPDX-License-Identifier: Apache-2.0
"""The shares that `aliquot run` has made on this machine: a directory for each run, and when it is dead.

Nothing depends on a handler that runs at the end: a run holds a lock that the kernel releases with its last
process, and whoever comes next clears away what nobody holds.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aliquot_agent import region, sharedir
from aliquot_api.errors import InvalidInput
from aliquot_cli.output import size
from aliquot_cli.uuids import is_meant

SHARES: Final = "shares"
PRELOAD: Final = "ld.so.preload"
_LOCK: Final = "lock"
_ABOUT: Final = "about.json"
_HIDDEN: Final = "."


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of this machine, now."""

    index: int
    uuid: str
    product: str
    memory_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class LocalShare:
    """One GPU's part of a run."""

    gpu_uuid: str
    cores_percent: int
    usage: region.Usage


@dataclass(frozen=True, slots=True)
class Run:
    """One run that is alive."""

    name: str
    path: Path
    pid: int
    command: tuple[str, ...]
    created_s: float
    shares: tuple[LocalShare, ...]


class Workstation:
    """All runs below one directory, which belongs to one user."""

    def __init__(self, *, root: Path) -> None:
        self._root = root

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else makes or clears away runs meanwhile."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def living(self) -> list[Run]:
        """The runs that are alive, oldest first; clears the dead ones away. Only inside `alone`."""
        runs = []
        for path in sorted(self._root.iterdir()):
            if path.name == _LOCK or not path.is_dir():
                continue
            if path.name.startswith(_HIDDEN) or not _is_alive(path):
                sharedir.discard(path)
                continue
            runs.append(_read(path))
        return sorted(runs, key=lambda run: run.created_s)

    def create(
        self, quotas: Sequence[region.Quota], *, command: Sequence[str], preload: str | None = None
    ) -> tuple[Path, int]:
        """Makes a run with these shares: its directory, and the lock that keeps it alive. Inside `alone`.

        The descriptor is inherited by the programs of the run.
        """
        name = secrets.token_hex(4)
        making = self._root / f"{_HIDDEN}{name}"
        making.mkdir(mode=0o700)
        about: Mapping[str, Any] = {"pid": os.getpid(), "command": list(command), "created": time.time()}
        (making / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        if preload is not None:
            (making / PRELOAD).write_text(preload, encoding="utf-8")
        for index, quota in enumerate(quotas):
            sharedir.create(making / SHARES / f"{name}-{index}", quota)
        fd = os.open(making / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(fd, True)
        making.rename(self._root / name)
        return self._root / name, fd


def root_of(environment: Mapping[str, str], *, uid: int) -> Path:
    """Where a user's runs are: memory that goes with the user's session. Raises InvalidInput."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "aliquot"
    if uid == 0:
        return Path("/run/aliquot-shares")
    usual = Path(f"/run/user/{uid}")
    if usual.is_dir():
        return usual / "aliquot"
    raise InvalidInput(
        field="XDG_RUNTIME_DIR", value=None, fix="want a directory of yours that only you can read"
    )


def choose(cards: Sequence[Card], wanted: Sequence[str]) -> list[Card]:
    """The GPUs that indices and UUIDs mean, the first one where none is named. Raises InvalidInput."""
    if not cards:
        raise InvalidInput(
            field="--gpu", value=list(wanted), fix="this machine has no GPU that can be shared"
        )
    chosen = []
    for words in wanted or [str(cards[0].index)]:
        found = [card for card in cards if words == str(card.index) or is_meant(card.uuid, words)]
        if len(found) != 1 or found[0] in chosen:
            known = ", ".join(f"{card.index} ({card.uuid})" for card in cards)
            raise InvalidInput(field="--gpu", value=words, fix=f"want one of {known}, each once")
        chosen.append(found[0])
    return chosen


def check_room(card: Card, runs: Sequence[Run], *, memory_bytes: int, cores_percent: int) -> None:
    """Raises InvalidInput where a new share does not fit beside the others and what is in use otherwise."""
    mine = [share for run in runs for share in run.shares if share.gpu_uuid == card.uuid]
    given = sum(share.usage.limit_bytes for share in mine)
    outside = max(0, card.used_bytes - sum(share.usage.used_bytes for share in mine))
    free = card.memory_bytes - given - outside
    if memory_bytes > free:
        raise InvalidInput(
            field="--memory",
            value=size(memory_bytes),
            fix=f"GPU {card.index} ({card.product}, {size(card.memory_bytes)}) has {size(max(0, free))} left:"
            f" {size(given)} are given to shares, {size(outside)} are in use by others; see aliquot ps",
        )
    cores = sum(share.cores_percent for share in mine)
    if cores_percent > 100 - cores:
        raise InvalidInput(
            field="--cores",
            value=cores_percent,
            fix=f"GPU {card.index} has {max(0, 100 - cores)} percent left",
        )


def _is_alive(path: Path) -> bool:
    """Whether a process of the run still has its lock, or a slot of one of its ledgers."""
    try:
        fd = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return any(sharedir.busy(share) for share in (path / SHARES).glob("*"))


def _read(path: Path) -> Run:
    about = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
    shares = []
    for share in sorted((path / SHARES).iterdir()):
        with sharedir.ShareFiles(path=share) as files:
            quota = files.quota()
            try:
                usage = region.usage(quota, files.ledger())
            except region.DamagedRegion:  # the program has written over it; its limit counts all the same
                usage = region.Usage(quota.memory_limit_bytes, 0, 0, 0, 0)
        shares.append(LocalShare(quota.gpu_uuid, quota.cores_millipercent // 1000, usage))
    return Run(
        name=path.name,
        path=path,
        pid=int(about["pid"]),
        command=tuple(about["command"]),
        created_s=float(about["created"]),
        shares=tuple(shares),
    )
