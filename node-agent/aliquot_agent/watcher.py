# SPDX-License-Identifier: Apache-2.0
"""Looks at every GPU once a second, from outside: the driver's figures against the shares' ledgers.

Puts quotas and ledgers right, writes what only the agent can know into the ledgers (host pid, overhead),
frees the slots of dead processes, beats in each quota, hands shares above their quota to the enforcer, and
keeps what it saw for reports and metrics.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final, Protocol

from aliquot_agent import processes, region, sharedir
from aliquot_agent.attribution import Key, Owners, Process
from aliquot_agent.books import Holder
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.claims import Claims
from aliquot_agent.errors import NvmlError
from aliquot_agent.hardware import Hardware
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.nvml import GpuProcess
from aliquot_agent.observe import LOOKS, Judge, Look, Observer
from aliquot_agent.outside import Outside
from aliquot_agent.picture import Observation, Picture
from aliquot_agent.pods import Pod
from aliquot_agent.processes import Identity, Place
from aliquot_agent.region import Slot
from aliquot_agent.watched import WatchedShare

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 1.0
_KNOWN_PROCESSES: Final = 4096
_LIBRARY_TICKS: Final = 30
"""Between two looks at a process's maps: they are long."""


class PodBook(Protocol):
    """The pods of this node (pods.Pods)."""

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID."""

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        """The pods that hold a claim."""


class Watcher:
    """The loop. `start`, then `stop`; `picture` at any time."""

    def __init__(
        self,
        *,
        claims: Claims,
        hardware: Hardware,
        pods: PodBook,
        judge: Judge,
        outside: Outside,
        policy: Callable[[], NodePolicy],
        changed: Callable[[], None],
        mounted: Callable[[int], frozenset[str]],
        has_library: Callable[[int], bool],
        escape: Callable[[Key], str] = lambda _: "",
        places: Callable[[int], Sequence[Place]] = processes.places,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._claims = claims
        self._hardware = hardware
        self._outside = outside
        self._changed = changed
        self._monotonic_s = monotonic_s
        self._observer = Observer(
            memory_bytes=hardware.memory_bytes,
            pods=pods,
            judge=judge,
            policy=policy,
            escape=escape,
            places=places,
        )
        self._owners = Owners(mounted=mounted, pods=pods)
        self._identities: dict[tuple[int, int], Identity] = {}
        self._has_library = lru_cache(maxsize=_KNOWN_PROCESSES)(lambda pid, _start, _epoch: has_library(pid))
        self._watched: dict[Key, WatchedShare] = {}
        self._picture = Picture()
        self._ticks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watcher")
        self._strangers: dict[str, dict[int, int]] = {}
        """Looks at which a process was in no ledger, by GPU UUID and host pid."""

    def start(self) -> None:
        """Looks once, so that the first slice knows what is held outside; then goes on by itself."""
        self.look()
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop and closes what it holds open."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.close()

    def close(self) -> None:
        """Closes the files of all shares."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()

    def picture(self) -> Picture:
        """What was seen last."""
        return self._picture

    def _loop(self) -> None:
        next_s = self._monotonic_s() + _PERIOD_S
        while not self._stop.wait(max(0.0, next_s - self._monotonic_s())):
            # From start to start: what a look takes must not make the next one late.
            next_s = max(next_s + _PERIOD_S, self._monotonic_s())
            self.look()

    def look(self) -> None:
        """One look at everything."""
        self._ticks += 1
        now_s = self._monotonic_s()
        claims = self._claims.prepared()
        self._open_and_close(claims)
        by_gpu: dict[str, list[Look]] = {gpu.uuid: [] for gpu in self._hardware.by_device().values()}
        for claim in claims:
            for share in claim.shares:
                look = Look(claim, share, self._watched.get((claim.uid, share.share)))
                by_gpu.setdefault(share.gpu_uuid, []).append(look)
        observations: list[Observation] = []
        unaccounted: list[tuple[str, int]] = []
        outside: list[tuple[str, int]] = []
        changed = False
        self._owners.begin()
        for gpu_uuid, looks in by_gpu.items():
            for look in looks:
                self._begin(look, now_s)
            held = self._assign(gpu_uuid, looks)
            observations += self._observer.observe(gpu_uuid, looks, now_s=now_s, told=held is not None)
            if held is not None:
                changed |= self._outside.observe(gpu_uuid, held, now_s=now_s)
                outside.append((gpu_uuid, held))
            if looks:
                unaccounted.append((gpu_uuid, self._count_strangers(gpu_uuid)))
        self._owners.end()
        self._strangers = {gpu: seen for gpu, seen in self._strangers.items() if gpu in by_gpu}
        self._picture = Picture(tuple(observations), tuple(unaccounted), tuple(outside))
        if changed:
            self._changed()

    def _open_and_close(self, claims: Iterable[PreparedClaim]) -> None:
        wanted = {(claim.uid, share.share): (claim, share) for claim in claims for share in claim.shares}
        for key, watched in list(self._watched.items()):
            if key not in wanted or watched.removed:
                self._watched.pop(key).close()
        self._observer.keep(wanted.keys())
        for key, (claim, share) in wanted.items():
            if key in self._watched:
                self._watched[key].claim, self._watched[key].share = claim, share
            elif not share.whole:
                self._open(claim, share)

    def _open(self, claim: PreparedClaim, share: PreparedShare) -> None:
        try:
            files = sharedir.ShareFiles(path=self._claims.share_dir(claim, share))
        except FileNotFoundError:
            return  # is being prepared, or was prepared before a reboot
        except (OSError, region.DamagedRegion) as error:
            logger.error("share cannot be opened", extra={"claim_uid": claim.uid, "error": str(error)})
            return
        self._watched[claim.uid, share.share] = WatchedShare(files=files, claim=claim, share=share)

    def _begin(self, look: Look, now_s: float) -> None:
        """Puts a share right and reads its ledger, before the driver is asked."""
        watched = look.watched
        if watched is None:
            return
        watched.put_right(now_s=now_s)
        watched.beat(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        watched.measured.clear()
        watched.touched = False
        look.ledger = watched.ledger(now_s=now_s)
        if look.ledger is not None:
            look.slots = {_identity(slot): slot for slot in watched.living_slots(look.ledger, now_s=now_s)}

    def _assign(self, gpu_uuid: str, looks: list[Look]) -> int | None:
        """Gives each process on a GPU to its share; bytes of those outside, None where NVML says nothing."""
        try:
            running = self._hardware.processes(gpu_uuid)
        except NvmlError as error:
            if looks:
                logger.warning("GPU cannot be watched", extra={"gpu": gpu_uuid, "error": str(error)})
            return None
        outside_bytes = 0
        strangers: dict[int, int] = {}
        seen = self._strangers.get(gpu_uuid, {})
        by_key = {(look.claim.uid, look.share.share): look for look in looks}
        candidates = {key: (look.claim, look.share) for key, look in by_key.items()}
        for process in running:
            known = self._identify(process.host_pid)
            if known is None:
                continue
            name = Process(gpu_uuid, process.host_pid, known.start_ticks)
            owner = self._owners.owner(name, candidates)
            look = None if owner is None else by_key[owner]
            if look is None:
                outside_bytes += process.used_bytes or 0
                in_ledger = False
            else:
                holder = self._holder(process, known, look)
                look.holders.append(holder)
                in_ledger = holder.slot is not None or look.share.whole
            if not in_ledger:
                strangers[process.host_pid] = seen.get(process.host_pid, 0) + 1
                if looks and strangers[process.host_pid] == LOOKS:
                    self._log_stranger(gpu_uuid, process, look)
        self._strangers[gpu_uuid] = strangers
        return outside_bytes

    def _identify(self, host_pid: int) -> Identity | None:
        """Who a process is; its namespace and its pid there stay what they are while it lives."""
        start_ticks = processes.start_ticks(host_pid)
        if start_ticks is None:
            return None
        known = self._identities.get((host_pid, start_ticks)) or processes.identify(host_pid)
        if known is not None:
            if len(self._identities) >= _KNOWN_PROCESSES:
                self._identities.clear()
            self._identities[host_pid, start_ticks] = known
        return known

    def _holder(self, process: GpuProcess, known: Identity, look: Look) -> Holder:
        slot, before_bytes = None, 0
        watched = look.watched
        if watched is not None:
            before = look.slots.get(known) or self._late_slot(known, look)
            if before is not None:
                slot, before_bytes = watched.measure(process, before), before.used_bytes
        epoch = self._ticks // _LIBRARY_TICKS
        return Holder(
            host_pid=process.host_pid,
            start_ticks=known.start_ticks,
            held_bytes=process.used_bytes,
            slot=slot,
            before_bytes=before_bytes,
            library=watched is None or self._has_library(process.host_pid, known.start_ticks, epoch),
        )

    @staticmethod
    def _late_slot(known: Identity, look: Look) -> Slot | None:
        """The slot of a process that came between the look at the ledger and the driver's answer."""
        if look.watched is None or look.ledger is None:
            return None
        for slot in look.watched.slots_now():
            if _identity(slot) == known:
                return slot
        return None

    def _count_strangers(self, gpu_uuid: str) -> int:
        """How many processes were in no ledger for long enough."""
        return sum(count >= LOOKS for count in self._strangers.get(gpu_uuid, {}).values())

    @staticmethod
    def _log_stranger(gpu_uuid: str, process: GpuProcess, look: Look | None) -> None:
        extra = {"host_pid": process.host_pid, "gpu": gpu_uuid, "bytes": process.used_bytes}
        if look is not None:
            extra["claim_uid"] = look.claim.uid
        logger.error("process uses a shared GPU and is in no ledger", extra=extra)


def _identity(slot: Slot) -> Identity:
    return Identity(slot.pid, slot.pidns_inode, slot.start_ticks)
