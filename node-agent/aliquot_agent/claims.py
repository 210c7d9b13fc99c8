# SPDX-License-Identifier: Apache-2.0
"""Prepare and unprepare: from a claim's allocation to files on this node, and back.

Order of writes of Prepare. Whatever is killed in between, the next call goes on from there:
  1. checkpoint: beside its name, then under its name in the lock of the GPU: from here on the claim counts,
     and Unprepare knows what to undo
  2. the claim's directory with a directory for each share (quota and ledger) and a metadata file for each
     request, complete by one rename; never made anew in this boot. It is on a tmpfs
  3. the CDI spec: from here on a container can start
  4. the GPU is shared as the shares want it, by the keeper, who reads the checkpoint
  then the answer to kubelet. Nothing of it is synced to the disk: where power goes, the containers go too,
  kubelet asks again, and all of it is made from the claim.
After a reboot no process of the old boot lives, so 2 is made anew, then 3 (/var/run/cdi is empty), and the
checkpoint gets the new boot id last.

Order of writes of Unprepare:
  1. the CDI spec goes: no container can start any more
  2. the claim's directory goes; what a straggler has mapped stays valid for it
  3. the checkpoint goes: forgotten only when nothing is left

One lock per claim, one per GPU, none around unrelated claims. The claim's lock is held across the API
call that reads the claim: two calls for one claim must not pass each other.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from aliquot_agent import allocation, cdi, files, fit, held, resize, sharedir
from aliquot_agent.allocation import Result
from aliquot_agent.basespecs import BaseSpecs
from aliquot_agent.checkpoint import Checkpoints, PreparedClaim, PreparedShare
from aliquot_agent.devices import shareable_bytes
from aliquot_agent.errors import Refused
from aliquot_agent.hardware import LeftOut
from aliquot_agent.locks import Lock, Locks
from aliquot_agent.marks import now_text
from aliquot_agent.nodepolicy import GpuPolicy
from aliquot_agent.nvml import Gpu
from aliquot_agent.reader import ClaimSource, Privilege, Reader, same
from aliquot_agent.shares import prepared_share, refuse_several_of_mps
from aliquot_agent.store import Store

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 30.0
"""Kubelet gives a call 45 s, and takes 80 s to come back after one that failed."""
_LONGEST_RETRY_S: Final = 2.0


class Gpus(Protocol):
    """The GPUs of the node (hardware.Hardware)."""

    def by_device(self) -> Mapping[str, Gpu]:
        """GPUs that are published, by device name."""

    def busy(self, gpu_uuid: str) -> bool:
        """Whether any process holds memory there."""

    def policy_of(self, gpu: Gpu) -> GpuPolicy:
        """What is decided about a GPU."""

    def not_ours(self, gpu: Gpu) -> LeftOut | None:
        """Why a GPU must not be given to new claims."""


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
        base: BaseSpecs,
        store: Store,
        locks: Locks,
        context_estimate_bytes: int,
        refused: Callable[[ClaimRef, Mapping[str, Any] | None, str], None] = lambda *_: None,
        privilege: Privilege = lambda *_: "",
        await_ways: Callable[[Sequence[PreparedShare], float], None] = lambda *_: None,
        patience_s: float = _PATIENCE_S,
        step: files.Step = files.no_step,
    ) -> None:
        self._node = node
        self._boot_id = boot_id
        self._reader = Reader(source=source, privilege=privilege)
        self._gpus = gpus
        self._checkpoints = checkpoints
        self._base = base
        self._store = store
        self._locks = locks
        self._context_estimate_bytes = context_estimate_bytes
        self._refused = refused
        self._await_ways = await_ways
        self._patience_s = patience_s
        self._step = step

    def start(self) -> None:
        """Makes the directories."""
        self._checkpoints.start()
        self._store.start()

    def make_ready(self) -> None:
        """Does now what the next Prepare need not wait for."""
        self._checkpoints.make_ready()

    def prepared(self) -> tuple[PreparedClaim, ...]:
        """Every claim with a checkpoint."""
        return self._checkpoints.all()

    def set_aside(self) -> set[str]:
        """UIDs of claims whose checkpoint could not be read."""
        return self._checkpoints.all_set_aside()

    def share_dir(self, claim: PreparedClaim, share: PreparedShare) -> Path:
        """Where the share's quota and ledger are."""
        return self._store.share_dir(claim, share.share)

    def prepare(self, ref: ClaimRef, *, waited_s: float = 0.0) -> tuple[PreparedDevice, ...]:
        """Makes the claim's shares ready; the same answer each time. Raises Refused, OSError.

        `waited_s` is what the other claims of the same call took of its time.
        """
        deadline = time.monotonic() + self._patience_s - waited_s
        with self._lock(ref.uid):
            entry = self._checkpoints.load(ref.uid)
            claim = self._reader.claim(ref.namespace, ref.name, deadline=deadline, known=entry is not None)
            try:
                return self._prepare(ref, claim, entry, deadline=deadline)
            except Refused as error:
                self._refused(ref, claim, str(error))
                raise

    def _prepare(
        self, ref: ClaimRef, claim: dict[str, Any] | None, entry: PreparedClaim | None, *, deadline: float
    ) -> tuple[PreparedDevice, ...]:
        fresh = False
        if claim is not None:
            results = allocation.own_results(claim, uid=ref.uid, node=self._node)
            if entry is not None and not same(entry, results):
                logger.warning("claim was allocated anew, old shares go", extra={"claim_uid": ref.uid})
                self._store.remove(ref.uid)
                entry = None
            base_ids = self._base_ids({result.device for result in results}, deadline=deadline)
            fresh = entry is None
            if entry is None:
                entry = self._reserve(ref, claim, results, deadline=deadline)
        else:
            assert entry is not None  # only then is there no claim
            base_ids = self._base_ids({share.device for share in entry.shares}, deadline=deadline)
        entry = self._store.ensure(entry, fresh=fresh)
        self._await_ways(entry.shares, deadline)
        return tuple(self._answer(entry, share, base_ids[share.device]) for share in entry.shares)

    def unprepare(self, uid: str) -> None:
        """Undoes `prepare`; a claim that is not prepared is a success. Raises OSError."""
        with self._lock(uid):
            self._store.remove(uid)

    def remove_orphan(self, uid: str) -> bool:
        """Removes the files of a claim without checkpoint; whether it did. Raises OSError.

        Where the checkpoint could not be read the pod may still run: its end, or the next Prepare, decides.
        """
        with self._lock(uid):
            if self._checkpoints.load(uid) is not None:  # it was prepared meanwhile
                return False
            if self._checkpoints.set_aside(uid) and self._store.in_use(uid):
                return False
            self._store.remove(uid)
            return True

    def release_if_gone(self, claim: PreparedClaim) -> bool:
        """Unprepares a claim that no longer holds its allocation and has no live process; whether it did.

        For claims that kubelet never asks us about again: force-deleted while nobody listened.
        """
        lock = self._lock(claim.uid)
        if not lock.acquire(blocking=False):  # it is being prepared or unprepared right now
            return False
        try:
            if not self._reader.gone(claim, node=self._node) or self._in_use(claim):
                return False
            self._store.remove(claim.uid)
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
                self._store.ensure(entry, fresh=False)

    def change_share(
        self,
        uid: str,
        share: str,
        change: Callable[[PreparedShare], PreparedShare | None],
        *,
        wait: bool = True,
    ) -> PreparedShare | None:
        """Replaces one share's checkpoint by what `change` makes of it; None where nothing can be changed.

        With `wait` false also None while the claim is being prepared or unprepared. Synced when it returns:
        a grant must outlive a power cut, the scheduler has seen it. Raises OSError.
        """
        lock = self._lock(uid)
        if not lock.acquire(blocking=wait):
            return None
        try:
            return self._change_share(uid, share, change)
        finally:
            lock.release()

    def _change_share(
        self, uid: str, share: str, change: Callable[[PreparedShare], PreparedShare | None]
    ) -> PreparedShare | None:
        with self._device_lock(uid, share):
            entry = self._checkpoints.load(uid)
            before = next((each for each in entry.shares if each.share == share), None) if entry else None
            after = None if before is None else change(before)
            if entry is None or after is None or after == before:
                return after
            shares = tuple(after if each.share == share else each for each in entry.shares)
            self._checkpoints.save(replace(entry, shares=shares))
            self._checkpoints.sync(uid)
            self._step("share: changed")
            return after

    def _device_lock(self, uid: str, share: str) -> Lock:
        """The lock of the GPU that a share is on; callers hold the claim's."""
        entry = self._checkpoints.load(uid)
        device = next((each.device for each in entry.shares if each.share == share), "") if entry else ""
        return self._lock(f"gpu {device}")

    def _lock(self, name: str) -> Lock:
        return self._locks.of(name)

    def _reserve(
        self, ref: ClaimRef, claim: Mapping[str, Any], results: Sequence[Result], *, deadline: float
    ) -> PreparedClaim:
        """Checks everything, then writes the checkpoint: from there on the shares count on their GPUs.

        A share that does not fit may find room in a moment: the pod before it has ended for the scheduler,
        but kubelet has not unprepared it yet.
        """
        gpus = self._gpus.by_device()
        for gpu in {result.device: gpus[result.device] for result in results}.values():
            if (left_out := self._gpus.not_ours(gpu)) is not None:
                raise Refused(f"GPU {gpu.uuid} is not given to new claims: {left_out.message}")
        devices = sorted({result.device for result in results})
        now = held.by_device(fit.sharers(self._checkpoints.all(), devices=devices, but=ref.uid))
        shares = tuple(
            prepared_share(
                result,
                gpu=gpus[result.device],
                policy=self._gpus.policy_of(gpus[result.device]),
                now=now.get(result.device),
                context_estimate_bytes=self._context_estimate_bytes,
            )
            for result in results
        )
        refuse_several_of_mps(shares)
        if not all(share.whole for share in shares):
            self._reader.refuse_privileged(claim, deadline=deadline)
        entry = PreparedClaim(
            uid=ref.uid,
            namespace=ref.namespace,
            name=ref.name,
            boot_id=self._boot_id,
            prepared_at=now_text(),
            library="" if all(share.whole for share in shares) else self._store.library(),
            shares=shares,
            pod_claim=allocation.pod_claim_name(claim),
            directory=self._store.directory,
        )
        policies = {device: self._gpus.policy_of(gpus[device]) for device in devices}
        # What is physically there: a reserve that was raised since must not strand what was allocated.
        physical = {
            device: fit.Room(shareable_bytes(gpus[device], reserve_bytes=0), policy.shares)
            for device, policy in policies.items()
        }
        nominal_bytes = {
            device: shareable_bytes(gpus[device], reserve_bytes=policy.reserve_bytes)
            for device, policy in policies.items()
        }
        with self._checkpoints.draft(entry) as draft:
            while True:
                with ExitStack() as locks:
                    for device in devices:
                        locks.enter_context(self._lock(f"gpu {device}"))
                    others = fit.sharers(self._checkpoints.all(), devices=devices, but=ref.uid)
                    problem = fit.first_misfit(physical, wanted=shares, others=others)
                    grown = resize.growth_in_the_way(nominal_bytes, wanted=shares, others=others)
                    if problem is None and not grown:
                        draft.commit()
                        return entry
                if self._take_back(grown):
                    continue
                if grown:
                    problem = "other claims' growth beyond what they consumed is being taken back; ask again"
                if not self._release_one(others, deadline=deadline):
                    if time.monotonic() + _LONGEST_RETRY_S > deadline:
                        raise Refused(problem)
                    logger.warning("waiting for room", extra={"claim_uid": ref.uid, "problem": problem})
                    time.sleep(_LONGEST_RETRY_S / 2)

    def _release_one(self, others: Sequence[PreparedClaim], *, deadline: float) -> bool:
        """Releases the first claim that is gone; whether there was one. Each is asked for at the server."""
        for claim in others:
            if self.release_if_gone(claim):
                return True
            if time.monotonic() > deadline:
                return False
        return False

    def _take_back(self, grown: Sequence[tuple[PreparedClaim, PreparedShare]]) -> bool:
        """Withdraws growth; whether any of it is free already, since no quota held it yet."""
        freed = False
        for claim, share in grown:
            after = self.change_share(claim.uid, share.share, resize.withdrawn, wait=False)
            freed |= after is not None and after.grant_bytes < share.grant_bytes
        return freed

    def _base_ids(self, devices: set[str], *, deadline: float) -> dict[str, str]:
        """The vendor's CDI name of each device; raises Refused where its spec does not have it in time.

        At boot the driver, its device nodes and the toolkit's specs come in any order.
        """
        while True:
            try:
                return self._base_ids_now(devices)
            except Refused as error:
                if time.monotonic() + _LONGEST_RETRY_S > deadline:
                    raise
                logger.warning("waiting for GPU access", extra={"problem": str(error)})
            time.sleep(_LONGEST_RETRY_S / 2)

    def _base_ids_now(self, devices: set[str]) -> dict[str, str]:
        gpus = self._gpus.by_device()
        ids: dict[str, str] = {}
        for device in sorted(devices):
            gpu = gpus.get(device)
            if gpu is None:
                raise Refused(f"device {device} is not on this node any more; it has {sorted(gpus)}")
            ids[device] = self._base.find(gpu_uuid=gpu.uuid, index=gpu.index, minor=gpu.minor)
        return ids

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
        return PreparedDevice(
            request=share.request,
            pool=share.pool,
            device=share.device,
            share=share.share,
            cdi_ids=(base_id, cdi.device_id(entry.uid, share.share)),
        )
