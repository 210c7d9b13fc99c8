# SPDX-License-Identifier: Apache-2.0
"""Prepare and unprepare: from a claim's allocation to files on this node, and back.

Order of writes of Prepare. Whatever is killed in between, the next call goes on from there:
  1. checkpoint: from here on the claim counts, and Unprepare knows what to undo; synced before 2
  2. each share's directory with quota and ledger, complete by one rename; never made anew in this boot
  3. the CDI spec: from here on a container can start
  then the answer to kubelet.
After a reboot no process of the old boot lives, so 2 is made anew, then 3 (/var/run/cdi is empty), and the
checkpoint gets the new boot id last.

Order of writes of Unprepare:
  1. the CDI spec goes: no container can start any more
  2. the share directories go; what a straggler has mapped stays valid for it
  3. the checkpoint goes: forgotten only when nothing is left

One lock per claim, one per GPU, none around unrelated claims. The claim's lock is held across the API
call that reads the claim: two calls for one claim must not pass each other.
"""

import datetime
import logging
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from aliquot_agent import allocation, cdi, files, fit, sharedir
from aliquot_agent.allocation import Result
from aliquot_agent.checkpoint import Checkpoints, PreparedClaim, PreparedShare
from aliquot_agent.devices import CORES, shareable_bytes
from aliquot_agent.errors import ApiError, NotOurs, Refused
from aliquot_agent.library import Library
from aliquot_agent.nvml import Gpu
from aliquot_api.config import Sharing

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 30.0
"""Kubelet gives a call 45 s, and takes 80 s to come back after one that failed."""
_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 2.0
_PRIVATE: Final = 0o700
"""Of our directories on the host: the runtime mounts the files inside, nobody else needs a way to them."""


class ClaimSource(Protocol):
    """Where claims are read (kube.Kube)."""

    def get_claim(self, namespace: str, name: str) -> dict[str, Any]:
        """A ResourceClaim; raises ApiError."""


class Gpus(Protocol):
    """The GPUs of the node (hardware.Hardware)."""

    def by_device(self) -> Mapping[str, Gpu]:
        """GPUs that are published, by device name."""

    def busy(self, gpu_uuid: str) -> bool:
        """Whether any process holds memory there."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as kubelet names it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """What kubelet is told about one allocation result."""

    request: str
    pool: str
    device: str
    share: str
    cdi_ids: tuple[str, ...]


class Claims:
    """All claims prepared on this node."""

    def __init__(
        self,
        *,
        node: str,
        boot_id: str,
        source: ClaimSource,
        gpus: Gpus,
        checkpoints: Checkpoints,
        base: cdi.BaseSpecs,
        library: Library,
        claims_dir: Path,
        cdi_dir: Path,
        reserve_bytes: int,
        shares_per_gpu: int,
        context_estimate_bytes: int,
        patience_s: float = _PATIENCE_S,
        step: files.Step = files.no_step,
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        self._source = source
        self._gpus = gpus
        self._checkpoints = checkpoints
        self._base = base
        self._library = library
        self._claims_dir = claims_dir
        self._cdi_dir = cdi_dir
        self._reserve_bytes = reserve_bytes
        self._shares_per_gpu = shares_per_gpu
        self._context_estimate_bytes = context_estimate_bytes
        self._patience_s = patience_s
        self._step = step
        self._mutex = threading.Lock()
        # Weak: a lock that nobody holds or waits for is forgotten, with its claim.
        self._locks: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()

    def start(self) -> None:
        """Makes the directories and clears half-made files of a process that was killed."""
        self._claims_dir.mkdir(parents=True, exist_ok=True)
        self._claims_dir.chmod(_PRIVATE)
        self._cdi_dir.mkdir(parents=True, exist_ok=True)
        self._checkpoints.start()
        files.remove_temporaries(self._cdi_dir)
        sharedir.remove_leftovers(self._claims_dir)
        for directory in self._claims_dir.iterdir():
            sharedir.remove_leftovers(directory)

    def prepared(self) -> tuple[PreparedClaim, ...]:
        """Every claim with a checkpoint."""
        return self._checkpoints.all()

    def share_dir(self, claim: PreparedClaim, share: PreparedShare) -> Path:
        """Where the share's quota and ledger are."""
        return self._claims_dir / claim.uid / share.share

    def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Makes the claim's shares ready; the same answer each time. Raises Refused, OSError."""
        deadline = time.monotonic() + self._patience_s
        with self._lock(ref.uid):
            entry, fresh = self._checkpoints.load(ref.uid), False
            claim = self._fetch(ref, deadline=deadline, known=entry is not None)
            if claim is not None:
                results = allocation.own_results(claim, uid=ref.uid, node=self._node)
                if entry is not None and not _same(entry, results):
                    logger.warning("claim was allocated anew, old shares go", extra={"claim_uid": ref.uid})
                    self._undo(ref.uid)
                    entry = None
                base_ids = self._base_ids({result.device for result in results})
                fresh = entry is None
                if entry is None:
                    entry = self._reserve(ref, results, deadline=deadline)
                    self._checkpoints.sync(ref.uid)
            else:
                assert entry is not None  # only then does _fetch answer None
                base_ids = self._base_ids({share.device for share in entry.shares})
            entry = self._materialise(entry, fresh=fresh)
            return tuple(self._answer(entry, share, base_ids[share.device]) for share in entry.shares)

    def unprepare(self, uid: str) -> None:
        """Undoes `prepare`; a claim that is not prepared is a success. Raises OSError."""
        with self._lock(uid):
            self._undo(uid)

    def remove_orphan(self, uid: str) -> bool:
        """Removes the files of a claim without checkpoint; whether it did. Raises OSError.

        Where the checkpoint could not be read the pod may still run: its end, or the next Prepare, decides.
        """
        with self._lock(uid):
            if self._checkpoints.load(uid) is not None:  # it was prepared meanwhile
                return False
            if self._checkpoints.set_aside(uid) and sharedir.any_in_use(self._claims_dir / uid):
                return False
            self._undo(uid)
            return True

    def release_if_gone(self, claim: PreparedClaim) -> bool:
        """Unprepares a claim that no longer holds its allocation and has no live process; whether it did.

        For claims that kubelet never asks us about again: force-deleted while nobody listened.
        """
        lock = self._lock(claim.uid)
        if not lock.acquire(blocking=False):  # it is being prepared or unprepared right now
            return False
        try:
            if not self._gone(claim) or self._in_use(claim):
                return False
            self._undo(claim.uid)
            logger.info("released claim that is gone", extra={"claim_uid": claim.uid, "claim": claim.name})
            return True
        finally:
            lock.release()

    def repair(self, claim: PreparedClaim) -> None:
        """Puts back what is missing of a prepared claim; after a reboot that is all of it.

        Kubelet does not always ask again: it believes its own notes. Raises OSError, Refused.
        """
        with self._lock(claim.uid):
            entry = self._checkpoints.load(claim.uid)
            if entry is not None:
                self._materialise(entry)

    def _lock(self, name: str) -> threading.Lock:
        with self._mutex:
            return self._locks.setdefault(name, threading.Lock())

    def _fetch(self, ref: ClaimRef, *, deadline: float, known: bool) -> dict[str, Any] | None:
        """The claim; None when the server is away and the checkpoint can answer instead."""
        delay = _RETRY_S
        while True:
            try:
                return self._source.get_claim(ref.namespace, ref.name)
            except ApiError as error:
                if error.status == 404:
                    raise Refused(f"there is no claim {ref.namespace}/{ref.name}") from error
                if known and error.transient:
                    return None
                if not error.transient or time.monotonic() + delay > deadline:
                    raise Refused(f"claim {ref.namespace}/{ref.name} cannot be read: {error}") from error
                logger.warning("reading claim again", extra={"claim_uid": ref.uid, "error": str(error)})
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST_RETRY_S)

    def _reserve(self, ref: ClaimRef, results: Sequence[Result], *, deadline: float) -> PreparedClaim:
        """Checks everything, then writes the checkpoint: from there on the shares count on their GPUs.

        A share that does not fit may find room in a moment: the pod before it has ended for the scheduler,
        but kubelet has not unprepared it yet.
        """
        gpus = self._gpus.by_device()
        shares = tuple(self._share(result, gpus) for result in results)
        entry = PreparedClaim(
            uid=ref.uid,
            namespace=ref.namespace,
            name=ref.name,
            boot_id=self._boot_id,
            prepared_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            library="" if all(share.whole for share in shares) else str(self._library.ensure()),
            shares=shares,
        )
        devices = sorted({share.device for share in shares})
        while True:
            with ExitStack() as locks:
                for device in devices:
                    locks.enter_context(self._lock(f"gpu {device}"))
                others = fit.sharers(self._checkpoints.all(), devices=devices, but=ref.uid)
                problem = self._misfit(devices, gpus, shares, others)
                if problem is None:
                    self._checkpoints.save(entry)
                    return entry
            released = [claim for claim in others if self.release_if_gone(claim)]
            if not released:
                if time.monotonic() + _LONGEST_RETRY_S > deadline:
                    raise Refused(problem)
                logger.warning("waiting for room", extra={"claim_uid": ref.uid, "problem": problem})
                time.sleep(_LONGEST_RETRY_S / 2)

    def _misfit(
        self,
        devices: Sequence[str],
        gpus: Mapping[str, Gpu],
        shares: Sequence[PreparedShare],
        others: Sequence[PreparedClaim],
    ) -> str | None:
        for device in devices:
            memory_bytes = shareable_bytes(gpus[device], reserve_bytes=self._reserve_bytes)
            room = fit.Room(memory_bytes=memory_bytes, shares=self._shares_per_gpu)
            problem = fit.misfit(device, room=room, wanted=shares, others=others)
            if problem is not None:
                return problem
        return None

    def _share(self, result: Result, gpus: Mapping[str, Gpu]) -> PreparedShare:
        gpu = gpus[result.device]
        whole = (
            result.memory_bytes >= shareable_bytes(gpu, reserve_bytes=self._reserve_bytes)
            and result.cores_percent >= CORES
        )
        if result.sharing is Sharing.EXCLUSIVE and not whole:
            raise Refused(
                f"sharing: exclusive asks for all of device {result.device}, but the claim consumed "
                f"{result.memory_bytes} bytes and {result.cores_percent} cores of it: ask for all of both"
            )
        return PreparedShare(
            share=result.share,
            request=result.request,
            pool=result.pool,
            device=result.device,
            gpu_uuid=gpu.uuid,
            whole=whole,
            memory_bytes=result.memory_bytes,
            cores_percent=result.cores_percent,
            shares=result.shares,
            context_estimate_bytes=self._context_estimate_bytes,
        )

    def _base_ids(self, devices: set[str]) -> dict[str, str]:
        """The vendor's CDI name of each device; raises Refused where its spec does not have it."""
        gpus = self._gpus.by_device()
        ids: dict[str, str] = {}
        for device in sorted(devices):
            gpu = gpus.get(device)
            if gpu is None:
                raise Refused(f"device {device} is not on this node any more; it has {sorted(gpus)}")
            ids[device] = self._base.find(gpu_uuid=gpu.uuid, index=gpu.index, minor=gpu.minor)
        return ids

    def _materialise(self, entry: PreparedClaim, *, fresh: bool = False) -> PreparedClaim:
        """Steps 2 and 3; only what is missing, everything after a reboot."""
        rebooted = entry.boot_id != self._boot_id
        shim = [share for share in entry.shares if not share.whole]
        if rebooted:
            library = str(self._library.ensure()) if shim else ""
            entry = replace(entry, boot_id=self._boot_id, library=library)
        elif shim and not fresh:
            self._check_library(entry)
        for share in shim:
            self._ensure_share(self.share_dir(entry, share), share, anew=rebooted)
        path = cdi.spec_path(self._cdi_dir, entry.uid)
        spec = cdi.encode(cdi.build(entry, claims_dir=self._claims_dir))
        if shim and not (path.exists() and path.read_bytes() == spec):
            files.write_atomic(path, spec, step=self._step)
        if rebooted:
            self._checkpoints.save(entry)
            self._checkpoints.sync(entry.uid)
        return entry

    def _check_library(self, entry: PreparedClaim) -> None:
        """Heals the library that the claim's containers were given if it is ours, refuses if it is not."""
        if str(self._library.ensure()) != entry.library and not Library.intact(entry.library):
            raise Refused(f"the library of this claim's containers, {entry.library}, is damaged or gone")

    def _ensure_share(self, path: Path, share: PreparedShare, *, anew: bool) -> None:
        if anew:
            sharedir.remove(path, step=self._step)
        elif path.exists():
            with sharedir.ShareFiles(path=path) as opened:  # raises DamagedRegion: containers may be using it
                opened.restore_quota(sharedir.quota_of(share))
            return
        quota = replace(sharedir.quota_of(share), heartbeat_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        path.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        sharedir.create(path, quota, mode=_PRIVATE, step=self._step)

    def _undo(self, uid: str) -> None:
        files.remove(cdi.spec_path(self._cdi_dir, uid), step=self._step)
        sharedir.remove(self._claims_dir / uid, step=self._step)
        self._checkpoints.remove(uid)

    def _gone(self, claim: PreparedClaim) -> bool:
        try:
            current = self._source.get_claim(claim.namespace, claim.name)
            results = allocation.own_results(current, uid=claim.uid, node=self._node)
        except ApiError as error:
            return error.status == 404
        except NotOurs:
            return True
        except Refused:  # written for another version of us; whoever holds it may be running
            return False
        return not _same(claim, results)

    def _in_use(self, claim: PreparedClaim) -> bool:
        for share in claim.shares:
            if share.whole:
                if self._gpus.busy(share.gpu_uuid):
                    return True
            elif sharedir.busy(self.share_dir(claim, share)):
                return True
        return False

    @staticmethod
    def _answer(entry: PreparedClaim, share: PreparedShare, base_id: str) -> PreparedDevice:
        own = () if share.whole else (cdi.device_id(entry.uid, share.share),)
        return PreparedDevice(
            request=share.request,
            pool=share.pool,
            device=share.device,
            share=share.share,
            cdi_ids=(base_id, *own),
        )


def _same(entry: PreparedClaim, results: Sequence[Result]) -> bool:
    """Whether the checkpoint is of this very allocation."""

    def key(of: PreparedShare | Result) -> tuple[str | int, ...]:
        return (of.share, of.request, of.device, of.memory_bytes, of.cores_percent, of.shares)

    return sorted(map(key, entry.shares)) == sorted(map(key, results))
