# SPDX-License-Identifier: Apache-2.0
"""The files of prepared claims: share directories, metadata, CDI specs. Makes what is missing, removes all.

Callers hold the claim's lock. The order of writes is told in `claims`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from aliquot_agent import cdi, files, metadata, sharedir
from aliquot_agent.checkpoint import Checkpoints, PreparedClaim, PreparedShare
from aliquot_agent.errors import Refused
from aliquot_agent.library import Library
from aliquot_agent.locks import Lock
from aliquot_agent.metadata import Attributes

_PRIVATE: Final = 0o700
"""Of our directories on the host: the runtime mounts the files inside, nobody else needs a way to them."""


class Store:
    """What a claim has on disk beside its checkpoint. `start` once."""

    def __init__(
        self,
        *,
        claims_dir: Path,
        cdi_dir: Path,
        checkpoints: Checkpoints,
        library: Library,
        boot_id: str,
        attributes: Callable[[str], Attributes],
        step: files.Step = files.no_step,
    ) -> None:
        self._claims_dir = claims_dir
        self._cdi_dir = cdi_dir
        self._checkpoints = checkpoints
        self._library = library
        self._boot_id = boot_id
        self._attributes = attributes
        self._step = step

    def start(self) -> None:
        """Makes the directories."""
        self._claims_dir.mkdir(parents=True, exist_ok=True)
        self._claims_dir.chmod(_PRIVATE)
        self._cdi_dir.mkdir(parents=True, exist_ok=True)

    def clear(self, lock_of: Callable[[str], Lock]) -> None:
        """Removes half-made files of a process that was killed.

        A claim whose lock is held is being worked on: what is half-made of it is not left over.
        """
        for uid, path in list(self._half_made()):
            lock = lock_of(uid)
            if lock.acquire(blocking=False):
                try:
                    sharedir.discard(path)
                finally:
                    lock.release()

    def _half_made(self) -> Iterator[tuple[str, Path]]:
        """Temporary files and directories, and the claims that they are of. In /var/run/cdi only ours."""
        temporary = f"*{files.TEMPORARY}"
        yield from (
            (path.name.partition(".")[0], path) for path in self._checkpoints.directory.glob(temporary)
        )
        for path in self._cdi_dir.glob(f"{cdi.FILE_PREFIX}{temporary}"):
            yield path.name.removeprefix(cdi.FILE_PREFIX).partition(".")[0], path
        for path in self._claims_dir.iterdir():
            if path.name.startswith("."):
                yield path.name[1:].partition(".")[0], path
            elif path.is_dir():
                yield from ((path.name, each) for each in (*path.glob(".*"), *path.glob(temporary)))

    def share_dir(self, claim_uid: str, share: str) -> Path:
        """Where a share's quota and ledger are."""
        return self._claims_dir / claim_uid / share

    def claim_dir(self, claim_uid: str) -> Path:
        """Where all of a claim's shares are."""
        return self._claims_dir / claim_uid

    def library(self) -> str:
        """The folder of the library for new containers; raises Refused."""
        return str(self._library.ensure())

    def ensure(self, entry: PreparedClaim, *, fresh: bool) -> PreparedClaim:
        """Steps 2 and 3 of Prepare: only what is missing, everything after a reboot.

        `fresh` tells that the checkpoint was written a moment ago, with the library verified.
        """
        rebooted = entry.boot_id != self._boot_id
        shim = [share for share in entry.shares if not share.whole]
        if rebooted:
            entry = replace(entry, boot_id=self._boot_id, library=self.library() if shim else "")
        elif shim and not fresh:
            self._check_library(entry)
        self.claim_dir(entry.uid).mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        for share in shim:
            self._ensure_share(self.share_dir(entry.uid, share.share), share, anew=rebooted)
        self._ensure_metadata(entry)
        path = cdi.spec_path(self._cdi_dir, entry.uid)
        spec = cdi.encode(cdi.build(entry, claims_dir=self._claims_dir))
        if not _holds(path, spec):
            files.write_atomic(path, spec, step=self._step)
        if rebooted:
            self._checkpoints.save(entry)
            self._checkpoints.sync(entry.uid)
        return entry

    def remove(self, uid: str) -> None:
        """All steps of Unprepare; what is gone already is no error."""
        files.remove(cdi.spec_path(self._cdi_dir, uid), step=self._step)
        sharedir.remove(self.claim_dir(uid), step=self._step)
        self._checkpoints.remove(uid)

    def _check_library(self, entry: PreparedClaim) -> None:
        """Heals the library that the claim's containers were given if it is ours, refuses if it is not."""
        if self.library() != entry.library and not Library.intact(entry.library):
            raise Refused(f"the library of this claim's containers, {entry.library}, is damaged or gone")

    def _ensure_share(self, path: Path, share: PreparedShare, *, anew: bool) -> None:
        if anew:
            sharedir.remove(path, step=self._step)
        elif path.exists():
            with sharedir.ShareFiles(path=path) as opened:  # raises DamagedRegion: containers may be using it
                opened.restore_quota(opened.quota_for(share))
            return
        quota = replace(sharedir.quota_of(share), heartbeat_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        sharedir.create(path, quota, mode=_PRIVATE, step=self._step)

    def _ensure_metadata(self, entry: PreparedClaim) -> None:
        """One file per request. Written once: it tells what was allocated, and a container has it mounted."""
        for request in sorted({share.request for share in entry.shares}):
            path = self.claim_dir(entry.uid) / metadata.file_name(request)
            if not path.exists():
                data = metadata.encode(entry, request, attributes=self._attributes)
                files.write_atomic(path, data, step=self._step)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False
