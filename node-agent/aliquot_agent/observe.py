# SPDX-License-Identifier: Apache-2.0
"""What one look at a GPU's shares comes to: books compared, faults noted, shares above their quota judged.

The watcher's part that only reckons; it has read ledgers and driver before.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from aliquot_agent import books, region
from aliquot_agent.attribution import Key
from aliquot_agent.books import Books, Holder
from aliquot_agent.checkpoint import Growth, PreparedClaim, PreparedShare
from aliquot_agent.enforce import Record
from aliquot_agent.marks import BOOKS_DIFFER, PACING_ESCAPED, SHIM_MISSING, WITHIN_QUOTA
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.picture import Observation
from aliquot_agent.pods import Pod
from aliquot_agent.processes import Identity, Place
from aliquot_agent.region import Slot, Usage
from aliquot_agent.watched import WatchedShare

LOOKS: Final = 2
"""What only one look shows may be a process that starts or ends."""


class Judge(Protocol):
    """What is done about a share above its quota (enforce.Enforcer)."""

    def judge(
        self,
        record: Record,
        *,
        claim: PreparedClaim,
        share: PreparedShare,
        limit_bytes: int,
        holders: Sequence[Holder],
        found: Books,
        pod: Callable[[Sequence[Holder]], Pod | None],
    ) -> bool:
        """Notes one look; whether the share is above its quota."""


class Holders(Protocol):
    """Who holds claims (pods.Pods)."""

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        """The pods that hold a claim."""


@dataclass(slots=True)
class Look:
    """One look at one share."""

    claim: PreparedClaim
    share: PreparedShare
    watched: WatchedShare | None
    ledger: region.Ledger | None = None
    slots: dict[Identity, Slot] = field(default_factory=dict)
    holders: list[Holder] = field(default_factory=list)


class Observer:
    """Makes observations of looks. For one thread."""

    def __init__(
        self,
        *,
        memory_bytes: Callable[[str], int | None],
        pods: Holders,
        judge: Judge,
        policy: Callable[[], NodePolicy],
        escape: Callable[[Key], str],
        places: Callable[[int], Sequence[Place]],
    ) -> None:
        self._memory_bytes = memory_bytes
        self._pods = pods
        self._judge = judge
        self._policy = policy
        self._escape = escape
        self._places = places
        self._whole_peaks: dict[Key, int] = {}
        self._resting: dict[Key, tuple[region.Ledger, Observation]] = {}
        """Of shares that nobody used at the look before: what their ledger said, and what was observed."""

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets all shares but these."""
        self._whole_peaks = {key: peak for key, peak in self._whole_peaks.items() if key in keys}
        self._resting = {key: each for key, each in self._resting.items() if key in keys}

    def observe(self, gpu_uuid: str, looks: Sequence[Look], *, now_s: float, told: bool) -> list[Observation]:
        """What the looks at the shares of one GPU come to; `told`: the driver has answered."""
        most_bytes = self._memory_bytes(gpu_uuid)
        seen = []
        for look in looks:
            if look.share.whole:
                seen.append(self._observe_whole(look))
            elif look.watched is not None:
                most = most_bytes or look.share.taken_bytes
                seen.append(self._observe(look, look.watched, most_bytes=most, now_s=now_s, told=told))
        return seen

    def _observe_whole(self, look: Look) -> Observation:
        key = (look.claim.uid, look.share.share)
        used = sum(holder.held_bytes or 0 for holder in look.holders)
        peak = self._whole_peaks[key] = max(used, self._whole_peaks.get(key, 0))
        usage = Usage(look.share.memory_bytes, used, peak, 0, len(look.holders))
        return Observation(look.claim, look.share, usage, measured_bytes=used)

    def _observe(
        self, look: Look, watched: WatchedShare, *, most_bytes: int, now_s: float, told: bool
    ) -> Observation:
        key = (look.claim.uid, look.share.share)
        resting = self._at_rest(key, look, watched, now_s) if told and not look.holders else None
        if resting is not None:
            return resting
        share, record = look.share, watched.record
        found = books.compare(
            look.holders,
            context_estimate_bytes=share.context_estimate_bytes,
            tolerance_bytes=self._policy().tolerance_bytes,
        )
        ledger = look.ledger
        if ledger is not None and watched.touched:
            ledger = watched.ledger(now_s=now_s)
        if ledger is not None:
            usage = watched.usage(ledger, most_bytes=most_bytes)
        else:
            used = min(found.measured_bytes, most_bytes)
            usage = Usage(watched.limit_bytes, used, used, denied=0, processes=len(look.holders))
        watched.land(used_bytes=max(usage.used_bytes, found.measured_bytes))
        if told:
            self._judge_share(look, watched, found, now_s)
        if escape := self._escape(key):
            watched.marks.fault(PACING_ESCAPED, "MoreThanItsCores", escape, now_s=now_s)
        watched.peak_bytes = max(watched.peak_bytes, usage.peak_bytes)
        usage = replace(usage, limit_bytes=watched.limit_bytes, peak_bytes=watched.peak_bytes)
        seen = Observation(
            look.claim,
            share,
            usage,
            measured_bytes=found.measured_bytes if told else None,
            drift_bytes=found.measured_bytes - found.counted_bytes if told else 0,
            faults=watched.marks.faults(now_s=now_s),
            within_since=watched.marks.ended(WITHIN_QUOTA),
            warned=record.warned,
            killed=record.killed,
            evicted=record.evicted,
            host_pids=tuple(holder.host_pid for holder in look.holders),
        )
        self._resting.pop(key, None)
        if told and not look.holders and ledger is not None and not ledger.slots and not seen.faults:
            self._resting[key] = ledger, seen
        return seen

    def _at_rest(self, key: Key, look: Look, watched: WatchedShare, now_s: float) -> Observation | None:
        """What was observed before, where it still holds: of most shares of a full node, at most looks."""
        ledger, seen = self._resting.get(key, (None, None))
        if seen is None or ledger is not look.ledger or watched.touched:
            return None
        if seen.claim is not look.claim or seen.share is not look.share:
            return None
        if not seen.usage.limit_bytes == watched.limit_bytes == look.share.limit:
            return None
        if look.share.growth is Growth.LEAVING or self._escape(key) or watched.marks.faults(now_s=now_s):
            return None
        return seen

    def _judge_share(self, look: Look, watched: WatchedShare, found: Books, now_s: float) -> None:
        """Notes faults, publishes the floor of a share with wrong books, and has the enforcer judge."""
        twice = watched.again(found.bypassing)
        marks = watched.marks
        if twice:
            text = books.in_words(twice)
            marks.fault(SHIM_MISSING, "OutsideTheLibrary", text, now_s=now_s)
        watched.differ_looks = watched.differ_looks + 1 if found.unexplained else 0
        if watched.differ_looks >= LOOKS:
            text = books.in_words(found.unexplained)
            marks.fault(BOOKS_DIFFER, "MoreThanCounted", text, now_s=now_s)
        wrong = (twice or watched.differ_looks >= LOOKS or look.ledger is None) and found.wrong
        watched.set_floor(found.measured_bytes if wrong else 0)
        above = self._judge.judge(
            watched.record,
            claim=look.claim,
            share=look.share,
            limit_bytes=watched.enforced_bytes(now_s=now_s),
            holders=look.holders,
            found=found,
            pod=lambda blamed: self._pod_of(look.claim, blamed),
        )
        if above:
            marks.fault(WITHIN_QUOTA, "OverQuota", watched.record.message, now_s=now_s)

    def _pod_of(self, claim: PreparedClaim, blamed: Sequence[Holder]) -> Pod | None:
        """The pod that holds a claim; of several the one that the biggest of the blamed processes is in."""
        pods = self._pods.holders(claim)
        biggest = max(blamed, key=lambda each: each.held_bytes or 0, default=None)
        if len(pods) < 2 or biggest is None:
            return pods[0] if len(pods) == 1 else None
        uids = {place.pod_uid for place in self._places(biggest.host_pid)}
        return next((pod for pod in pods if pod.uid in uids), None)
