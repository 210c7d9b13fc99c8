# SPDX-License-Identifier: Apache-2.0
"""Looks at every prepared share once a second, from outside: NVML against ledger.

Puts quotas and ledgers right, writes what only the agent can know into the ledgers (host pid, overhead),
frees the slots of dead processes, beats in each quota, and keeps what it saw for reports and metrics.
"""

import datetime
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from aliquot_agent import overhead, processes, region, sharedir
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.claims import Claims
from aliquot_agent.errors import NvmlError
from aliquot_agent.hardware import Hardware
from aliquot_agent.nvml import GpuProcess
from aliquot_agent.processes import Identity
from aliquot_agent.region import Slot, Usage

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 1.0
_REFRESH_TICKS: Final = 30
_REFRESH_TICKS_BROKEN: Final = 5
_KNOWN_PROCESSES: Final = 4096
_STRANGER_LOOKS: Final = 2
"""A process enters its ledger before it makes a context, so a second look without a slot is no race."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A ledger that cannot be read."""

    message: str
    since: str
    """RFC 3339."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one share was seen to use; from NVML alone while its ledger is damaged."""

    claim: PreparedClaim
    share: PreparedShare
    usage: Usage
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """All shares at one instant, and how many processes on their GPUs are in no ledger, by GPU UUID."""

    observations: tuple[Observation, ...] = ()
    unaccounted: tuple[tuple[str, int], ...] = ()


class _Watched:
    """One share while it is prepared."""

    def __init__(self, files: sharedir.ShareFiles, share: PreparedShare) -> None:
        self.files = files
        self.share = share
        self.trackers: dict[int, overhead.Tracker] = {}
        self.measured: dict[int, int] = {}
        """What NVML says of the processes in its slots."""
        self.peak_bytes = 0
        self.damage: Damage | None = None
        self.warned = False


class Watcher:
    """The loop. `start`, then `stop`; `picture` at any time."""

    def __init__(
        self,
        *,
        claims: Claims,
        hardware: Hardware,
        changed: Callable[[], None],
        mounted: Callable[[int], frozenset[str]] = processes.mounted_shares,
    ) -> None:
        self._claims = claims
        self._hardware = hardware
        self._changed = changed
        self._mounted = mounted
        # A container's mounts stay; the start tells a process from the next one with its pid.
        self._mounted_since = lru_cache(maxsize=_KNOWN_PROCESSES)(lambda pid, _start_ticks: mounted(pid))
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._whole_peaks: dict[tuple[str, str], int] = {}
        self._picture = Picture()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watcher")
        self._strangers: dict[str, dict[int, int]] = {}
        """Looks at which a process was in no ledger, by GPU UUID and host pid."""

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop and closes what it holds open."""
        self._stop.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Closes the files of all shares."""
        for watched in self._watched.values():
            watched.files.close()
        self._watched.clear()

    def picture(self) -> Picture:
        """What was seen last."""
        return self._picture

    def _loop(self) -> None:
        ticks = 0
        while not self._stop.wait(_PERIOD_S):
            ticks += 1
            period = _REFRESH_TICKS if self._hardware.by_device() else _REFRESH_TICKS_BROKEN
            if ticks % period == 0 and self._hardware.refresh():
                self._changed()
            self.look()

    def look(self) -> None:
        """One look at everything."""
        claims = self._claims.prepared()
        self._open_and_close(claims)
        observations: list[Observation] = []
        unaccounted: list[tuple[str, int]] = []
        by_gpu: dict[str, list[tuple[PreparedClaim, PreparedShare]]] = {}
        for claim in claims:
            for share in claim.shares:
                by_gpu.setdefault(share.gpu_uuid, []).append((claim, share))
        self._strangers = {gpu: looks for gpu, looks in self._strangers.items() if gpu in by_gpu}
        for gpu_uuid, shares in by_gpu.items():
            seen, strangers = self._look_at_gpu(gpu_uuid, shares)
            observations += seen
            unaccounted.append((gpu_uuid, strangers))
        self._picture = Picture(observations=tuple(observations), unaccounted=tuple(unaccounted))

    def _open_and_close(self, claims: Iterable[PreparedClaim]) -> None:
        wanted = {(claim.uid, share.share): (claim, share) for claim in claims for share in claim.shares}
        for key in self._watched.keys() - wanted.keys():
            self._watched.pop(key).files.close()
        self._whole_peaks = {key: peak for key, peak in self._whole_peaks.items() if key in wanted}
        for key in wanted.keys() - self._watched.keys():
            claim, share = wanted[key]
            if share.whole:
                continue
            try:
                files = sharedir.ShareFiles(path=self._claims.share_dir(claim, share))
            except FileNotFoundError:
                continue  # is being prepared, or was prepared before a reboot
            except (OSError, region.DamagedRegion) as error:
                logger.error("share cannot be opened", extra={"claim_uid": claim.uid, "error": str(error)})
                continue
            self._watched[key] = _Watched(files, share)

    def _look_at_gpu(
        self, gpu_uuid: str, shares: list[tuple[PreparedClaim, PreparedShare]]
    ) -> tuple[list[Observation], int]:
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        before: dict[Identity, list[tuple[_Watched, Slot]]] = {}
        for claim, share in shares:
            watched = self._watched.get((claim.uid, share.share))
            if watched is not None:
                self._restore(watched, claim)
                watched.measured.clear()
                watched.files.beat(now_ns)
                for slot in self._living_slots(watched, claim):
                    identity = Identity(slot.pid, slot.pidns_inode, slot.start_ticks)
                    before.setdefault(identity, []).append((watched, slot))
        try:
            running = self._hardware.processes(gpu_uuid)
        except NvmlError as error:
            logger.warning("GPU cannot be watched", extra={"gpu": gpu_uuid, "error": str(error)})
            running = ()
        strangers: list[GpuProcess] = []
        for process in running:
            known = processes.identify(process.host_pid)
            if known is None:
                continue
            # Anyone can write anyone's identity into a ledger of their own; mounts cannot be forged.
            inside = self._mounted_since(process.host_pid, known.start_ticks) if known in before else ()
            slots = [each for each in before.get(known, ()) if each[0].share.share in inside]
            match = next(iter(slots), None)
            if match is not None:
                self._measure(process, *match)
            elif not all(share.whole for _, share in shares):
                strangers.append(process)
        seen = [self._observe(claim, share, running) for claim, share in shares]
        return [each for each in seen if each is not None], self._count_strangers(gpu_uuid, strangers)

    def _restore(self, watched: _Watched, claim: PreparedClaim) -> None:
        """Undoes what only root on the host, or a tenant with the ledger in hand, can have done."""
        error = ""
        restored: list[str] = []
        try:
            if watched.files.restore_quota(sharedir.quota_of(watched.share)):
                restored.append(sharedir.QUOTA)
            if watched.files.restore_ledger():
                restored.append(sharedir.LEDGER)
        except OSError as problem:
            error = str(problem)
        if (restored or error) and not watched.warned:
            watched.warned = True
            extra = {
                "claim_uid": claim.uid,
                "share": watched.share.share,
                "restored": restored,
                "error": error,
            }
            logger.warning("share was tampered with", extra=extra)

    def _ledger(self, watched: _Watched, claim: PreparedClaim) -> region.Ledger | None:
        """The ledger; None, and noted, when it is damaged."""
        try:
            ledger = watched.files.ledger()
        except region.DamagedRegion as error:
            if watched.damage is None:
                logger.error("ledger is damaged", extra={"claim_uid": claim.uid, "error": str(error)})
                now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                watched.damage = Damage(message=str(error), since=now)
            return None
        watched.damage = None
        return ledger

    def _living_slots(self, watched: _Watched, claim: PreparedClaim) -> list[Slot]:
        """The slots in use, after those of dead processes were freed."""
        ledger = self._ledger(watched, claim)
        living = []
        for slot in ledger.slots if ledger is not None else ():
            with watched.files.orphaned(slot.index) as orphaned:
                # A program that closed all its descriptors lost its lock, but lives.
                if orphaned and not _alive(slot):
                    watched.files.clear_slot(slot)
                    watched.trackers.pop(slot.index, None)
                else:
                    living.append(slot)
        return living

    def _measure(self, process: GpuProcess, watched: _Watched, before: Slot) -> None:
        after = watched.files.slot(before.index)
        watched.measured[before.index] = process.used_bytes or 0
        tracker = watched.trackers.setdefault(before.index, overhead.Tracker())
        bytes_ = tracker.observe(
            before=before,
            after=after,
            nvml_bytes=process.used_bytes,
            context_estimate_bytes=watched.share.context_estimate_bytes,
        )
        if after is None or after.generation != before.generation:
            return
        if bytes_ is not None:
            watched.files.write_slot(after, host_pid=process.host_pid, overhead_bytes=bytes_)
        elif after.host_pid != process.host_pid:
            watched.files.write_host_pid(after.index, process.host_pid)

    def _observe(
        self, claim: PreparedClaim, share: PreparedShare, running: tuple[GpuProcess, ...]
    ) -> Observation | None:
        key = (claim.uid, share.share)
        if share.whole:
            used = sum(process.used_bytes or 0 for process in running)
            peak = self._whole_peaks[key] = max(used, self._whole_peaks.get(key, 0))
            return Observation(claim, share, Usage(share.memory_bytes, used, peak, 0, len(running)))
        watched = self._watched.get(key)
        if watched is None:
            return None
        ledger = self._ledger(watched, claim)
        most_bytes = self._hardware.memory_bytes(share.gpu_uuid) or share.memory_bytes
        if ledger is not None:
            usage = region.usage(
                sharedir.quota_of(share), ledger, most_bytes=most_bytes, measured=watched.measured
            )
        else:
            inside = [
                process.used_bytes or 0
                for process in running
                if share.share in self._mounted(process.host_pid)
            ]
            used = min(sum(inside), most_bytes)
            usage = Usage(share.memory_bytes, used, used, denied=0, processes=len(inside))
        watched.peak_bytes = max(watched.peak_bytes, usage.peak_bytes)
        return Observation(claim, share, replace(usage, peak_bytes=watched.peak_bytes), watched.damage)

    def _count_strangers(self, gpu_uuid: str, strangers: list[GpuProcess]) -> int:
        """How many of these processes were in no ledger for long enough; logs each once."""
        before = self._strangers.get(gpu_uuid, {})
        looks = {process.host_pid: before.get(process.host_pid, 0) + 1 for process in strangers}
        self._strangers[gpu_uuid] = looks
        for process in strangers:
            if looks[process.host_pid] == _STRANGER_LOOKS:
                extra = {"host_pid": process.host_pid, "gpu": gpu_uuid, "bytes": process.used_bytes}
                pod_uid = processes.pod_uid(process.host_pid)
                if pod_uid is not None:
                    extra["pod_uid"] = pod_uid
                logger.error("process uses a shared GPU and is in no ledger", extra=extra)
        return sum(count >= _STRANGER_LOOKS for count in looks.values())


def _alive(slot: Slot) -> bool:
    """Whether the process that took the slot still runs, as far as its host pid is known."""
    if not slot.host_pid:
        return False
    return processes.identify(slot.host_pid) == Identity(slot.pid, slot.pidns_inode, slot.start_ticks)
