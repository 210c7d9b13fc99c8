# SPDX-License-Identifier: Apache-2.0
"""One share while it is prepared: its files kept right, its ledger read, its quota moved where it must be."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from aliquot_agent import overhead, processes, region, sharedir
from aliquot_agent.books import Holder
from aliquot_agent.checkpoint import Growth, PreparedClaim, PreparedShare
from aliquot_agent.enforce import Record
from aliquot_agent.marks import LEDGER_DAMAGED, Marks
from aliquot_agent.nvml import GpuProcess
from aliquot_agent.processes import Identity
from aliquot_agent.region import Slot
from aliquot_api.quantity import MIB

logger = logging.getLogger(__name__)

_WITHOUT_LOCK_LOOKS: Final = 2
_LEAVE_S: Final = 10.0
"""What a share has to give back growth that is withdrawn, before it counts as over its quota."""


class WatchedShare:
    """A share that is held by the shim. Used by the watcher's thread alone."""

    def __init__(self, *, files: sharedir.ShareFiles, claim: PreparedClaim, share: PreparedShare) -> None:
        self.claim = claim
        self.share = share
        self.record = Record()
        self.marks = Marks()
        self.measured: dict[int, int] = {}
        """What the driver says of the processes in its slots."""
        self.peak_bytes = 0
        self.floor_bytes = 0
        self._leaving_since_s: float | None = None
        self.differ_looks = 0
        """In a row at which a slot did not explain what its process holds."""
        self._files = files
        self._trackers: dict[int, overhead.Tracker] = {}
        self._without_lock: dict[int, int] = {}
        self._bypassing: set[tuple[int, int]] = set()
        self._generation: int | None = None
        self._slots_used = 0
        self._logged = False
        self._right = False
        """Whether the quota has been as this agent wants it: what differs before is not a tenant's doing."""
        self._wanted: tuple[tuple[PreparedShare, int, int], region.Quota] | None = None
        self.touched = False
        """Whether this look has changed what the ledger counts."""
        # What a killed agent had in force: a quota that follows its use down goes on from there.
        self.limit_bytes = files.quota_for(share).memory_limit_bytes

    def close(self) -> None:
        """Closes its files."""
        self._files.close()

    @property
    def removed(self) -> bool:
        """Whether its files were removed: what is at their path now was made anew."""
        return self._files.removed()

    def beat(self, now_ns: int) -> None:
        """Shows its processes that the agent lives."""
        self._files.beat(now_ns)

    def put_right(self, *, now_s: float) -> None:
        """Undoes what only root on the host, or a tenant with the ledger in hand, can have done."""
        if self.share.limit > self.limit_bytes:
            self._set_limit(self.share.limit)
        try:
            if self._files.restore_quota(self._quota()):
                if self._right:
                    self._tampered("quota changed")
                else:
                    self._brought_up_to_date()
            self._right = True
            if self._files.restore_ledger():
                self._tampered("ledger truncated, grown or closed")
                self._damaged("Truncated", "size or mode of the ledger was changed", now_s)
        except OSError as error:
            self._tampered(str(error))

    def land(self, *, used_bytes: int) -> None:
        """Moves the quota down to what the checkpoint says, no further than what is in use.

        The limit is stored, then the use read again: what was announced before the store is seen now, and
        what comes later meets the new limit. So no allocation that was granted ends above the limit.
        """
        target = self.share.limit
        if target >= self.limit_bytes:
            return
        before = self.limit_bytes
        self._set_limit(max(target, min(before, _whole(used_bytes))))
        counted = self._counted_bytes()
        if counted > self.limit_bytes:
            self._set_limit(min(before, _whole(counted)))

    def ledger(self, *, now_s: float) -> region.Ledger | None:
        """The ledger; None, and noted, when it is damaged: it is healed for the next look."""
        try:
            ledger = self._files.ledger()
        except region.DamagedRegion as error:
            self._damaged("HeaderOverwritten", str(error), now_s)
            with suppress(OSError):
                self._files.heal_ledger(self._generation)
            return None
        self._generation = ledger.generation
        if not self._slots_used <= ledger.slots_used <= region.SLOTS:
            text = f"the number of slots in use was {self._slots_used} and became {ledger.slots_used}"
            self._damaged("SlotsHidden", text, now_s)
            with suppress(OSError):
                self._files.write_slots_used(self._slots_used)
            with suppress(region.DamagedRegion):  # written over meanwhile: the next look heals it
                return self._files.ledger()
            return None
        self._slots_used = ledger.slots_used
        return ledger

    def slots_now(self) -> tuple[Slot, ...]:
        """The slots in use, read again."""
        with suppress(region.DamagedRegion):
            return self._files.ledger().slots
        return ()

    def living_slots(self, ledger: region.Ledger, *, now_s: float) -> list[Slot]:
        """The slots in use, after those of dead processes were freed."""
        living = []
        without_lock: dict[int, int] = {}
        for slot in ledger.slots:
            with self._files.orphaned(slot.index) as orphaned:
                # A program that closed all its descriptors lost its lock, but lives.
                if orphaned and not _alive(slot):
                    with suppress(OSError):  # a tenant may have punched a hole, and filled the disk
                        self._files.clear_slot(slot)
                    self.touched = True
                    self._trackers.pop(slot.index, None)
                    continue
            living.append(slot)
            if orphaned:
                without_lock[slot.index] = self._without_lock.get(slot.index, 0) + 1
                if without_lock[slot.index] >= _WITHOUT_LOCK_LOOKS:
                    text = f"slot {slot.index} of process {slot.host_pid} is in use without its lock"
                    self._damaged("SlotWithoutLock", text, now_s)
        self._without_lock = without_lock
        return living

    def measure(self, process: GpuProcess, before: Slot) -> Slot | None:
        """Takes a sample of one process; its slot as it is now, None when it was given up or taken anew."""
        after = self._files.slot(before.index)
        self.measured[before.index] = process.used_bytes or 0
        tracker = self._trackers.setdefault(before.index, overhead.Tracker())
        bytes_ = tracker.observe(
            before=before,
            after=after,
            nvml_bytes=process.used_bytes,
            context_estimate_bytes=self.share.context_estimate_bytes,
        )
        if after is None or after.generation != before.generation:
            return None
        with suppress(OSError):  # as above
            if bytes_ is not None:
                self.touched = True
                self._files.write_slot(after, host_pid=process.host_pid, overhead_bytes=bytes_)
            elif after.host_pid != process.host_pid:
                self._files.write_host_pid(after.index, process.host_pid)
        return after

    def enforced_bytes(self, *, now_s: float) -> int:
        """What the share may hold: its quota in force, but growth that was withdrawn ends in time."""
        if self.share.growth is not Growth.LEAVING:
            self._leaving_since_s = None
            return self.limit_bytes
        if self._leaving_since_s is None:
            self._leaving_since_s = now_s
        return self.share.limit if now_s - self._leaving_since_s >= _LEAVE_S else self.limit_bytes

    def again(self, bypassing: Sequence[Holder]) -> list[Holder]:
        """Those that were outside the shim in the look before as well."""
        before, self._bypassing = self._bypassing, {(each.host_pid, each.start_ticks) for each in bypassing}
        return [each for each in bypassing if (each.host_pid, each.start_ticks) in before]

    def set_floor(self, floor_bytes: int) -> None:
        """What the shim counts at least."""
        if floor_bytes != self.floor_bytes:
            self.floor_bytes = floor_bytes
            self._files.restore_quota(self._quota())

    def usage(self, ledger: region.Ledger, *, most_bytes: int) -> region.Usage:
        """The share's use by its ledger."""
        return region.usage(self._quota(), ledger, most_bytes=most_bytes, measured=self.measured)

    def _quota(self) -> region.Quota:
        key = self.share, self.limit_bytes, self.floor_bytes
        if self._wanted is None or self._wanted[0] != key:
            quota = replace(
                sharedir.quota_of(self.share),
                memory_limit_bytes=self.limit_bytes,
                floor_bytes=self.floor_bytes,
            )
            self._wanted = key, quota
        return self._wanted[1]

    def _set_limit(self, limit_bytes: int) -> None:
        if limit_bytes != self.limit_bytes:
            self.limit_bytes = limit_bytes
            self._files.restore_quota(self._quota())

    def _counted_bytes(self) -> int:
        """What the shim counts now; 0 for a ledger that tells nothing."""
        try:
            ledger = self._files.ledger()
        except region.DamagedRegion:
            return 0
        return self.usage(ledger, most_bytes=region.SANE_BYTES).used_bytes

    def _damaged(self, reason: str, message: str, now_s: float) -> None:
        if self.marks.fault(LEDGER_DAMAGED, reason, message, now_s=now_s):
            extra = {"claim_uid": self.claim.uid, "share": self.share.share, "error": message}
            logger.error("ledger is damaged", extra=extra)

    def _brought_up_to_date(self) -> None:
        extra = {"claim_uid": self.claim.uid, "share": self.share.share}
        logger.info(
            "quota brought up to date: another agent laid it out, or it was changed while none ran",
            extra=extra,
        )

    def _tampered(self, what: str) -> None:
        if not self._logged:
            self._logged = True
            extra = {"claim_uid": self.claim.uid, "share": self.share.share, "what": what}
            logger.warning("share was tampered with", extra=extra)


def _alive(slot: Slot) -> bool:
    """Whether the process that took the slot still runs, as far as its host pid is known."""
    if not slot.host_pid:
        return False
    return processes.identify(slot.host_pid) == Identity(slot.pid, slot.pidns_inode, slot.start_ticks)


def _whole(bytes_: int) -> int:
    """Rounded up to whole MiB."""
    return -(-bytes_ // MIB) * MIB
