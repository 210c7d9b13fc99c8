# SPDX-License-Identifier: Apache-2.0
"""What the agent has prepared, one file per claim: enough to answer again, rebuild and undo.

Each file carries a version and a checksum. One that cannot be read is set aside as `.corrupt` and logged;
it never stops the agent.

In an update two agents read each other's files, and after a rollback an older one reads a newer one's: fields
that it does not know are kept, for what it does not know it cannot do, but the share counts and is held. What
an older agent must not pass over needs another `VERSION`, or a value that it does not know in a field that it
knows; either sets the file aside.
"""

import enum
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from aliquot_agent import files
from aliquot_agent.spares import Spares
from aliquot_api import modes
from aliquot_api.config import ComputePolicy, OverQuota, Priority

logger = logging.getLogger(__name__)

VERSION: Final = 1
CORRUPT: Final = ".corrupt"
_SUFFIX: Final = ".json"
_UID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")

_FRESH_S: Final = 1.0


class Growth(enum.StrEnum):
    """Where a share's growth beyond what its claim consumed stands."""

    NONE = ""
    ASKED = "asked"
    """Recorded and taken off the published capacity; not in the quota."""
    HELD = "held"
    """In the quota."""
    LEAVING = "leaving"
    """Taken back, the quota is what the claim consumed; given up when the share's use is below that."""


class UnreadableCheckpoint(ValueError):
    """Damaged, or written by a version of the agent that we do not know."""


@dataclass(frozen=True, slots=True)
class PreparedShare:
    """One allocation result of ours, as it was prepared."""

    share: str
    """Share ID; names the directory and the CDI device."""
    request: str
    """Base name, without a subrequest."""
    pool: str
    device: str
    gpu_uuid: str
    whole: bool
    """The whole GPU: base access only, no quota, no shim."""
    memory_bytes: int
    cores_percent: int
    shares: int
    context_estimate_bytes: int
    class_over_quota: str = ""
    """What the DeviceClass says of processes above the share (config.OverQuota); empty: nothing."""
    claim_over_quota: str = ""
    """What the claim says; it can only be stricter."""
    class_compute_policy: str = ""
    """As above, of how cores are held (config.ComputePolicy)."""
    claim_compute_policy: str = ""
    priority: str = ""
    """Who gets idle time first (config.Priority); empty: low."""
    sharing: str = "shim"
    """How the GPU is shared with the others (modes.Mode)."""
    limit_bytes: int | None = None
    """The quota in force after a resize; None: what the claim consumed."""
    grant_bytes: int = 0
    """What is taken off the published capacity for growth beyond what the claim consumed."""
    growth: Growth = Growth.NONE
    newer: str = ""
    """Fields of a newer agent, as JSON: kept as they are."""

    @property
    def limit(self) -> int:
        """The quota in force, in bytes."""
        return self.memory_bytes if self.limit_bytes is None else self.limit_bytes

    @property
    def taken_bytes(self) -> int:
        """What the share takes of its GPU."""
        return self.memory_bytes + self.grant_bytes


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim with a checkpoint."""

    uid: str
    namespace: str
    name: str
    boot_id: str
    prepared_at: str
    """RFC 3339."""
    library: str
    """Directory of the library version that its containers were given; empty when all shares are whole."""
    shares: tuple[PreparedShare, ...]
    pod_claim: str = ""
    """The pod's name for a claim that was made from a template."""
    directory: str = ""
    """Its share directories are `<directory>/<uid>/<share>`; empty: where agents before had them."""
    newer: str = ""
    """Fields of a newer agent, as JSON: kept as they are."""


_SHARE_FIELDS: Final = tuple(field.name for field in fields(PreparedShare) if field.name != "newer")
_CLAIM_FIELDS: Final = tuple(field.name for field in fields(PreparedClaim) if field.name != "newer")
_TEXT: Final = json.JSONEncoder(sort_keys=True)


class Draft:
    """A checkpoint that does not count yet; gone at the end of the `with` where it was not committed."""

    def __init__(self, *, temporary: str, commit: Callable[[], None]) -> None:
        self._temporary = temporary
        self._commit = commit
        self._committed = False

    def commit(self) -> None:
        """From here on the claim counts."""
        self._commit()
        self._committed = True

    def __enter__(self) -> "Draft":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._committed:
            files.remove(self._temporary)


class Checkpoints:
    """The checkpoint directory. Callers hold the claim's lock for `save` and `remove`."""

    def __init__(
        self,
        *,
        directory: Path,
        alone: Callable[[], bool] = lambda: False,
        step: files.Step = files.no_step,
    ) -> None:
        self.directory = directory
        self._spares = Spares(directory=directory.with_name(f"{directory.name}-spare"))
        self._alone = alone
        self._step = step
        self._cache: dict[str, tuple[files.Signature, PreparedClaim]] = {}
        self._mutex = threading.Lock()
        self._index: dict[str, PreparedClaim] = {}
        self._read_at_s = float("-inf")
        self._read_alone = False
        self._writes = 0

    def start(self) -> None:
        """Makes the directories."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._spares.start()

    def make_ready(self) -> None:
        """Makes files for the next claims, so that none of them waits for that."""
        self._spares.fill()

    def save(self, claim: PreparedClaim) -> None:
        """Writes a claim's checkpoint: there for every process, not yet for a machine that loses power."""
        self.draft(claim).commit()

    def draft(self, claim: PreparedClaim) -> "Draft":
        """Writes it where nobody looks: `commit` is all that is left to do under a lock that others want."""
        path = self._path(claim.uid)
        data = encode(claim)
        temporary = path + files.TEMPORARY
        if self._spares.take(temporary):
            self._step(f"{path}: spare file taken")
            files.write_over(temporary, data)
        else:
            files.write_temporary(path, data, mode=0o600)
        self._step(f"{path}: temporary written")
        signature = files.signature(os.stat(temporary))
        return Draft(temporary=temporary, commit=lambda: self._put(path, signature, claim))

    def _put(self, path: str, signature: files.Signature, claim: PreparedClaim) -> None:
        files.put(path, step=self._step)
        self._cache[path.rpartition("/")[2]] = (signature, claim)
        with self._mutex:
            self._index[claim.uid] = claim
            self._writes += 1

    def sync(self, uid: str) -> None:
        """Brings a claim's checkpoint to the disk."""
        files.sync(Path(self._path(uid)))

    def remove(self, uid: str) -> None:
        """Forgets a claim, what could not be read of it included."""
        path = self._path(uid)
        files.remove(path + CORRUPT)
        if not self._spares.give(path):
            files.remove(path)
        self._step(f"{path}: removed")
        with self._mutex:
            self._index.pop(uid, None)
            self._cache.pop(path.rpartition("/")[2], None)
            self._writes += 1

    def load(self, uid: str) -> PreparedClaim | None:
        """A claim's checkpoint, None if there is none that can be read."""
        return self._read(self._path(uid))

    def all(self) -> tuple[PreparedClaim, ...]:
        """All claims: what we wrote ourselves, and once a second what the directory holds.

        While another agent is there, and once after it has gone, the directory is read each time.
        """
        alone, now_s = self._alone(), time.monotonic()
        with self._mutex:
            if alone and self._read_alone and now_s - self._read_at_s < _FRESH_S:
                return tuple(self._index.values())
            writes = self._writes
        found: dict[str, PreparedClaim] = {}
        names = set()
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    names.add(entry.name)
                    claim = self._known(entry) or self._read(entry.path)
                    if claim is not None:
                        found[claim.uid] = claim
        for name in list(self._cache):
            if name not in names:  # another agent removed it
                self._cache.pop(name, None)
        with self._mutex:
            if writes == self._writes:  # else what was found may lack what was written meanwhile
                self._index, self._read_at_s, self._read_alone = dict(found), now_s, alone
        return tuple(found.values())

    def peek(self) -> tuple[PreparedClaim, ...]:
        """All claims that can be read; touches nothing, for who is not the agent."""
        claims = []
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            with suppress(OSError, UnreadableCheckpoint):
                claims.append(decode(path.read_bytes(), uid=path.stem))
        return tuple(claims)

    def all_set_aside(self) -> set[str]:
        """UIDs of the claims whose checkpoint could not be read."""
        return {path.name.partition(".")[0] for path in self.directory.glob(f"*{_SUFFIX}{CORRUPT}")}

    def set_aside(self, uid: str) -> bool:
        """Whether a claim had a checkpoint that could not be read."""
        return os.path.exists(self._path(uid) + CORRUPT)

    def _known(self, entry: os.DirEntry[str]) -> PreparedClaim | None:
        cached = self._cache.get(entry.name)
        try:
            return cached[1] if cached is not None and cached[0] == files.signature(entry.stat()) else None
        except FileNotFoundError:
            return None

    def _path(self, uid: str) -> str:
        if not _UID.fullmatch(uid):
            raise ValueError(f"claim UID {uid!r} cannot be a file name")
        return f"{self.directory}/{uid}{_SUFFIX}"

    def _read(self, path: str) -> PreparedClaim | None:
        name = path.rpartition("/")[2]
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # as for each new claim
            self._cache.pop(name, None)
            return None
        try:
            with os.fdopen(fd, "rb") as file:
                signature = files.signature(os.fstat(fd))
                claim = decode(file.read(), uid=name.removesuffix(_SUFFIX))
        except UnreadableCheckpoint as error:
            with suppress(FileNotFoundError):  # another thread was first
                os.rename(path, path + CORRUPT)
            logger.error("checkpoint set aside", extra={"file": path, "error": str(error)})
            return None
        self._cache[name] = (signature, claim)
        return claim


def encode(claim: PreparedClaim) -> bytes:
    """A checkpoint file."""
    body = _body(claim, _CLAIM_FIELDS)
    body["shares"] = [_body(share, _SHARE_FIELDS) for share in claim.shares]
    text = _TEXT.encode(body)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"version": {VERSION}, "checksum": "{checksum}", "claim": {text}}}'.encode()


def _body(of: PreparedClaim | PreparedShare, names: tuple[str, ...]) -> dict[str, Any]:
    """As dataclasses.asdict, without its deep copies: this is called in every Prepare."""
    body = dict(zip(names, attrgetter(*names)(of), strict=True))
    return body if not of.newer else {**json.loads(of.newer), **body}


def decode(data: bytes, *, uid: str) -> PreparedClaim:
    """The claim in a checkpoint file; raises UnreadableCheckpoint."""
    try:
        document = json.loads(data)
        version, body = document["version"], document["claim"]
        if version != VERSION:
            raise UnreadableCheckpoint(f"version {version!r}, want {VERSION}")
        if document["checksum"] != _checksum(body):
            raise UnreadableCheckpoint("checksum differs")
        shares = tuple(_share(share) for share in body["shares"])
        claim = PreparedClaim(**_known(body, _CLAIM_FIELDS) | {"shares": shares})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableCheckpoint(str(error)) from error
    if claim.uid != uid:
        raise UnreadableCheckpoint(f"is of claim {claim.uid}")
    return claim


def _share(body: dict[str, Any]) -> PreparedShare:
    share = PreparedShare(**_known(body, _SHARE_FIELDS) | {"growth": Growth(body.get("growth", ""))})
    modes.parse(share.sharing, field="sharing")
    for words, values in (
        (OverQuota, (share.class_over_quota, share.claim_over_quota)),
        (ComputePolicy, (share.class_compute_policy, share.claim_compute_policy)),
        (Priority, (share.priority,)),
    ):
        for value in filter(None, values):
            words(value)
    return share


def _known(body: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that we know, and the others as text in `newer`."""
    known = {name: body[name] for name in names if name in body}
    if len(known) < len(body):
        newer = {name: value for name, value in body.items() if name not in known}
        known["newer"] = json.dumps(newer, sort_keys=True)
    return known


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
