# SPDX-License-Identifier: Apache-2.0
"""Looks at every prepared share once a second, from outside: NVML against ledger.

Writes what only the agent can know into the ledgers (host pid, overhead), frees the slots of dead
processes, beats in each quota, and keeps what it saw for reports and metrics.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Observation:
    """What one share was seen to use."""

    claim: PreparedClaim
    share: PreparedShare
    usage: Usage


@dataclass(frozen=True, slots=True)
class Picture:
    """All shares at one instant, and processes that use a share's GPU past its ledger, by GPU UUID."""

    observations: tuple[Observation, ...] = ()
    unaccounted: tuple[tuple[str, int], ...] = ()


class _Watched:
    """One share while it is prepared."""

    def __init__(self, files: sharedir.ShareFiles) -> None:
        self.files = files
        self.trackers: dict[int, overhead.Tracker] = {}
        self.peak_bytes = 0
        self.damaged = False


class Watcher:
    """The loop. `start`, then `stop`; `picture` at any time."""

    def __init__(self, *, claims: Claims, hardware: Hardware, changed: Callable[[], None]) -> None:
        self._claims = claims
        self._hardware = hardware
        self._changed = changed
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._whole_peaks: dict[tuple[str, str], int] = {}
        self._picture = Picture()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watcher")
        self._logged: set[int] = set()

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
            self._watched[key] = _Watched(files)

    def _look_at_gpu(
        self, gpu_uuid: str, shares: list[tuple[PreparedClaim, PreparedShare]]
    ) -> tuple[list[Observation], int]:
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        before: dict[Identity, tuple[_Watched, Slot]] = {}
        for claim, share in shares:
            watched = self._watched.get((claim.uid, share.share))
            if watched is not None:
                watched.files.beat(now_ns)
                for slot in self._living_slots(watched, claim):
                    before[Identity(slot.pid, slot.pidns_inode, slot.start_ticks)] = (watched, slot)
        try:
            running = self._hardware.processes(gpu_uuid)
        except NvmlError as error:
            logger.warning("GPU cannot be watched", extra={"gpu": gpu_uuid, "error": str(error)})
            running = ()
        strangers = 0
        for process in running:
            identity = processes.identify(process.host_pid)
            if identity is None:
                continue
            match = before.get(identity)
            if match is not None:
                self._measure(gpu_uuid, process, *match)
            elif processes.mounted_shares(process.host_pid) & {share.share for _, share in shares}:
                strangers += 1
                self._log_stranger(process, gpu_uuid)
        return [
            Observation(claim=claim, share=share, usage=usage)
            for claim, share in shares
            if (usage := self._usage(claim, share, running)) is not None
        ], strangers

    def _living_slots(self, watched: _Watched, claim: PreparedClaim) -> list[Slot]:
        """The slots in use, after those of dead processes were freed."""
        try:
            slots = watched.files.ledger().slots
        except region.DamagedRegion as error:
            if not watched.damaged:
                logger.error("ledger is damaged", extra={"claim_uid": claim.uid, "error": str(error)})
            watched.damaged = True
            return []
        watched.damaged = False
        living = []
        for slot in slots:
            with watched.files.orphaned(slot.index) as orphaned:
                # A program that closed all its descriptors lost its lock, but lives.
                if orphaned and not _alive(slot):
                    watched.files.clear_slot(slot)
                    watched.trackers.pop(slot.index, None)
                else:
                    living.append(slot)
        return living

    def _measure(self, gpu_uuid: str, process: GpuProcess, watched: _Watched, before: Slot) -> None:
        after = watched.files.slot(before.index)
        estimate = watched.files.quota().context_estimate_bytes
        tracker = watched.trackers.setdefault(before.index, overhead.Tracker())
        bytes_ = tracker.observe(
            before=before, after=after, nvml_bytes=process.used_bytes, context_estimate_bytes=estimate
        )
        if after is None or after.generation != before.generation:
            return
        if bytes_ is not None:
            watched.files.write_slot(after, host_pid=process.host_pid, overhead_bytes=bytes_)
            gpu = next((gpu for gpu in self._hardware.by_device().values() if gpu.uuid == gpu_uuid), None)
            if gpu is not None and after.contexts:
                self._hardware.context_measured(gpu, -(-bytes_ // after.contexts))
        elif after.host_pid != process.host_pid:
            watched.files.write_host_pid(after.index, process.host_pid)

    def _usage(
        self, claim: PreparedClaim, share: PreparedShare, running: tuple[GpuProcess, ...]
    ) -> Usage | None:
        key = (claim.uid, share.share)
        if share.whole:
            used = sum(process.used_bytes or 0 for process in running)
            peak = self._whole_peaks[key] = max(used, self._whole_peaks.get(key, 0))
            return Usage(share.memory_bytes, used, peak, denied=0, processes=len(running))
        watched = self._watched.get(key)
        if watched is None or watched.damaged:
            return None
        try:
            usage = region.usage(watched.files.quota(), watched.files.ledger())
        except region.DamagedRegion:
            return None
        watched.peak_bytes = max(watched.peak_bytes, usage.peak_bytes)
        return Usage(usage.limit_bytes, usage.used_bytes, watched.peak_bytes, usage.denied, usage.processes)

    def _log_stranger(self, process: GpuProcess, gpu_uuid: str) -> None:
        if process.host_pid not in self._logged:
            self._logged = {pid for pid in self._logged if processes.identify(pid) is not None}
            self._logged.add(process.host_pid)
            logger.error(
                "process uses a shared GPU without a slot in its share's ledger",
                extra={"host_pid": process.host_pid, "gpu": gpu_uuid, "bytes": process.used_bytes},
            )


def _alive(slot: Slot) -> bool:
    """Whether the process that took the slot still runs, as far as its host pid is known."""
    if not slot.host_pid:
        return False
    return processes.identify(slot.host_pid) == Identity(slot.pid, slot.pidns_inode, slot.start_ticks)
