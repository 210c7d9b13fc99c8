# SPDX-License-Identifier: Apache-2.0
"""The files of prepared claims: share directories, metadata, CDI specs. Makes what is missing, removes all.

Callers hold the claim's lock. The order of writes is told in `claims`.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from aliquot_agent import cdi, files, metadata, region, sharedir
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
        old_claims_dir: Path,
        mps_dir: Path,
        cdi_dir: Path,
        checkpoints: Checkpoints,
        library: Library,
        boot_id: str,
        attributes: Callable[[str], Attributes],
        step: files.Step = files.no_step,
    ) -> None:
        self._claims_dir = claims_dir
        self._old_claims_dir = old_claims_dir
        self._mps_dir = str(mps_dir)
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

    @property
    def directory(self) -> str:
        """Where the share directories of new claims are."""
        return str(self._claims_dir)

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
        for path in self._entries():
            if path.name.startswith("."):
                yield path.name[1:].partition(".")[0], path
            elif path.is_dir():
                yield from ((path.name, each) for each in (*path.glob(".*"), *path.glob(temporary)))

    def _entries(self) -> Iterator[Path]:
        """What the directories hold in which claims have theirs."""
        yield from self._claims_dir.iterdir()
        if self._old_claims_dir.is_dir():
            yield from self._old_claims_dir.iterdir()

    def names(self) -> set[str]:
        """Names of what has files here: UIDs of claims, and whatever else lies there. Raises OSError."""
        return cdi.claims_with_spec(self._cdi_dir) | {path.name for path in self._entries()}

    def claim_dir(self, claim: PreparedClaim) -> str:
        """Where all of a claim's shares are."""
        return f"{claim.directory or self._old_claims_dir}/{claim.uid}"

    def share_dir(self, claim: PreparedClaim, share: str) -> Path:
        """Where a share's quota and ledger are."""
        return Path(self.claim_dir(claim), share)

    def in_use(self, uid: str) -> bool:
        """Whether anybody uses a share of a claim whose checkpoint cannot tell where they are."""
        return any(sharedir.any_in_use(folder / uid) for folder in (self._claims_dir, self._old_claims_dir))

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
            self._remove_shares(entry.uid, entry)
            entry = replace(
                entry,
                boot_id=self._boot_id,
                library=self.library() if shim else "",
                directory=self.directory,
            )
        elif shim and not fresh:
            self._check_library(entry)
        folder = self.claim_dir(entry)
        if os.path.isdir(folder):
            self._complete(folder, entry)
        else:
            self._make(folder, entry)
        path = cdi.spec_path(self._cdi_dir, entry.uid)
        spec = cdi.encode(cdi.build(entry, folder=folder, mps_dir=self._mps_dir))
        if fresh or not _holds(path, spec):
            files.write_atomic(path, spec, step=self._step)
        if rebooted:
            self._checkpoints.save(entry)
            self._checkpoints.sync(entry.uid)
        return entry

    def remove(self, uid: str) -> None:
        """All steps of Unprepare; what is gone already is no error."""
        files.remove(cdi.spec_path(self._cdi_dir, uid), step=self._step)
        self._remove_shares(uid, self._checkpoints.load(uid))
        self._checkpoints.remove(uid)

    def _remove_shares(self, uid: str, entry: PreparedClaim | None) -> None:
        """A claim's directory, wherever an agent may have made it."""
        folders = {self.directory, str(self._old_claims_dir), entry.directory if entry else ""} - {""}
        for folder in sorted(folders):
            sharedir.remove(f"{folder}/{uid}", step=self._step)

    def _check_library(self, entry: PreparedClaim) -> None:
        """Heals the library that the claim's containers were given if it is ours, refuses if it is not."""
        if self.library() != entry.library and not Library.intact(entry.library):
            raise Refused(f"the library of this claim's containers, {entry.library}, is damaged or gone")

    def _make(self, folder: str, entry: PreparedClaim) -> None:
        """A claim's whole directory, which appears complete or not at all."""
        parent, _, name = folder.rpartition("/")
        temporary = f"{parent}/.{name}.{time.monotonic_ns():x}"  # the claim's lock is held
        os.mkdir(temporary, _PRIVATE)
        self._step("claim: temporary directory made")
        try:
            for share in entry.shares:
                if not share.whole:
                    path = f"{temporary}/{share.share}"
                    sharedir.fill(path, _first_quota(share), mode=_PRIVATE, step=self._step)
            for request in _requests(entry):
                files.write_new(f"{temporary}/{metadata.file_name(request)}", self._metadata(entry, request))
                self._step("claim: metadata written")
            os.rename(temporary, folder)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._step("claim: renamed")

    def _complete(self, folder: str, entry: PreparedClaim) -> None:
        """What is missing in a claim's directory; containers may be using the rest of it."""
        for share in entry.shares:
            path = Path(folder, share.share)
            if share.whole:
                continue
            if path.exists():
                with sharedir.ShareFiles(path=path) as opened:  # raises DamagedRegion
                    opened.restore_quota(opened.quota_for(share))
            else:
                sharedir.create(path, _first_quota(share), mode=_PRIVATE, step=self._step)
        for request in _requests(entry):
            # Written once: it tells what was allocated, and a container has it mounted.
            metadata_path = Path(folder, metadata.file_name(request))
            if not metadata_path.exists():
                files.write_atomic(metadata_path, self._metadata(entry, request), step=self._step)

    def _metadata(self, entry: PreparedClaim, request: str) -> bytes:
        return metadata.encode(entry, request, attributes=self._attributes)


def _first_quota(share: PreparedShare) -> region.Quota:
    return sharedir.quota_of(share, heartbeat_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))


def _requests(entry: PreparedClaim) -> list[str]:
    """The requests of a claim: each has one metadata file."""
    return sorted({share.request for share in entry.shares})


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return False
