# SPDX-License-Identifier: Apache-2.0
"""Writes each claim's use into its `status.devices[]`, rarely.

On change beyond 1 % of the limit or 64 MiB, at most once per interval for a claim and twice a second for
the node. Server-side apply with a field manager per node: entries of other drivers stay as they are.
A claim whose report the server refuses is left alone for longer each time, up to five minutes.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.errors import ApiError
from aliquot_agent.loops import Loop
from aliquot_agent.marks import WITHIN_QUOTA, Mark
from aliquot_agent.picture import Observation
from aliquot_api.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION
from aliquot_api.quantity import MIB

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
"""Between two writes of this node."""
_NOTABLE_BYTES: Final = 64 * MIB
_NOTABLE_PERCENT: Final = 1
_NOTABLE_NS: Final = 60_000_000_000
_LONGEST_WAIT_S: Final = 300.0
_LONGEST_MESSAGE: Final = 1000
"""The API server takes 32 KiB of a condition's message, and readers less."""


class StatusApi(Protocol):
    """Where reports go (kube.Kube)."""

    def apply_claim_status(self, namespace: str, name: str, body: dict[str, Any], *, manager: str) -> None:
        """Server-side apply of a claim's status; raises ApiError."""


@dataclass(frozen=True, slots=True)
class Report:
    """What is written about one share."""

    seen: Observation
    marks: tuple[Mark, ...]
    """All conditions."""


Health = Callable[[str], Mark]
"""Condition `Healthy` of a GPU, by UUID."""
Resizes = Callable[[str], Mark | None]
"""Condition `Resized` of a share that has been resized, or could not be, by its ID."""


def compose(seen: Observation, *, healthy: Mark, resized: Mark | None) -> Report:
    """All that is to be said about a share."""
    ready = Mark("Ready", True, "Prepared", "", seen.claim.prepared_at)
    over = next((fault for fault in seen.faults if fault.kind == WITHIN_QUOTA), None)
    since = seen.within_since or seen.claim.prepared_at
    within = Mark(WITHIN_QUOTA, True, "WithinQuota", "", since)
    if over is not None:
        within = replace(over, status=False)
    faults = tuple(fault for fault in seen.faults if fault.kind != WITHIN_QUOTA)
    more = () if resized is None else (resized,)
    return Report(seen, (ready, healthy, within, *more, *faults))


def build(claim: PreparedClaim, reports: Sequence[Report]) -> dict[str, Any]:
    """The status to apply."""
    return {
        "apiVersion": f"{RESOURCE_GROUP}/{RESOURCE_VERSION}",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {
            "devices": [
                {
                    "driver": DRIVER,
                    "pool": report.seen.share.pool,
                    "device": report.seen.share.device,
                    "shareID": report.seen.share.share,
                    "conditions": [_condition(mark) for mark in report.marks],
                    "data": {
                        "limit": report.seen.usage.limit_bytes,
                        "used": report.seen.usage.used_bytes,
                        "peak": report.seen.usage.peak_bytes,
                        "denied": report.seen.usage.denied,
                        "throttled_s": _throttled_s(report.seen),
                        "processes": report.seen.usage.processes,
                    },
                }
                for report in reports
            ]
        },
    }


def _throttled_s(seen: Observation) -> float:
    return round(seen.usage.throttled_ns / 1e9, 1)


def _condition(mark: Mark) -> dict[str, str]:
    return {
        "type": mark.kind,
        "status": "True" if mark.status else "False",
        "reason": mark.reason,
        "message": mark.message[:_LONGEST_MESSAGE],
        "lastTransitionTime": mark.since,
    }


def notable(before: Report, after: Report) -> bool:
    """Whether the difference is worth a write."""
    if [_key(mark) for mark in before.marks] != [_key(mark) for mark in after.marks]:
        return True
    old, new = before.seen.usage, after.seen.usage
    threshold = min(_NOTABLE_BYTES, new.limit_bytes * _NOTABLE_PERCENT // 100)
    if (old.limit_bytes, old.denied, old.processes) != (new.limit_bytes, new.denied, new.processes):
        return True
    if new.throttled_ns - old.throttled_ns > _NOTABLE_NS:  # a paced tenant's grows all the time
        return True
    return max(abs(old.used_bytes - new.used_bytes), abs(old.peak_bytes - new.peak_bytes)) > threshold


def _key(mark: Mark) -> tuple[str, bool, str]:
    """What makes a condition another one; its words may count on."""
    return mark.kind, mark.status, mark.reason


_Facts = tuple[Observation, Mark, Mark | None]
"""What a report is made from: use, health, resize."""


@dataclass(slots=True)
class _Attempt:
    """The last write for one claim."""

    at_s: float
    wait_s: float
    """Until the next."""
    written: tuple[Report, ...] = ()
    """Empty when it failed."""
    problem: str = ""
    judged: Sequence[_Facts] = ()
    """What is no news beside what was written."""


class Reporter:
    """The loop. `start`, then `stop`."""

    def __init__(
        self,
        *,
        api: StatusApi,
        node: str,
        observations: Callable[[], Sequence[Observation]],
        health: Health,
        resizes: Resizes,
        interval_s: float,
    ) -> None:
        self._api = api
        self._manager = f"aliquot-agent-{node}"[:128]
        self._observations = observations
        self._health = health
        self._resizes = resizes
        self._interval_s = interval_s
        self._attempts: dict[str, _Attempt] = {}
        self._healthy: dict[str, Mark] = {}
        self._seen: list[_Facts] = []
        self._calm_until_s = float("-inf")
        """Until then nothing is due while what is seen stays the same."""
        self._loop = Loop(name="reporter", step=self._step, period_s=_PAUSE_S)

    def start(self) -> None:
        """Begins to report."""
        self._loop.start()

    def stop(self) -> None:
        """Ends the loop."""
        self._loop.stop()

    def _step(self) -> None:
        self.report_one(now_s=time.monotonic())

    def report_one(self, *, now_s: float) -> str | None:
        """Writes the one claim that has waited longest and has news; its UID."""
        facts = self._facts()
        if now_s < self._calm_until_s and facts == self._seen:
            return None  # as at most looks, and there may be 128 shares
        self._seen = facts
        by_claim: dict[str, list[_Facts]] = {}
        for each in facts:
            by_claim.setdefault(each[0].claim.uid, []).append(each)
        self._attempts = {uid: attempt for uid, attempt in self._attempts.items() if uid in by_claim}
        due = [uid for uid, each in by_claim.items() if self._due(uid, each, now_s)]
        if not due:
            waiting = (
                attempt.at_s + attempt.wait_s
                for uid, attempt in self._attempts.items()
                if attempt.judged != by_claim[uid]
            )
            self._calm_until_s = min(waiting, default=float("inf"))
            return None
        self._calm_until_s = float("-inf")
        never = _Attempt(at_s=float("-inf"), wait_s=self._interval_s)
        uid = min(due, key=lambda candidate: self._attempts.get(candidate, never).at_s)
        reports = _compose_all(by_claim[uid])
        self._attempts[uid] = self._write(reports, before=self._attempts.get(uid, never), now_s=now_s)
        return uid

    def _facts(self) -> list[_Facts]:
        """What is to be said of each share, in the objects of the last look where it is the same."""
        healthy: dict[str, Mark] = {}
        found = []
        for seen in self._observations():
            gpu = seen.share.gpu_uuid
            if gpu not in healthy:
                mark, known = self._health(gpu), self._healthy.get(gpu)
                healthy[gpu] = known if known is not None and known == mark else mark
            found.append((seen, healthy[gpu], self._resizes(seen.share.share)))
        self._healthy = healthy
        return found

    def _write(self, seen: Sequence[Report], *, before: _Attempt, now_s: float) -> _Attempt:
        claim = seen[0].seen.claim
        try:
            body = build(claim, seen)
            self._api.apply_claim_status(claim.namespace, claim.name, body, manager=self._manager)
        except ApiError as error:
            problem = str(error)
            if error.status != 404 and problem != before.problem:
                logger.warning("report not written", extra={"claim_uid": claim.uid, "error": problem})
            wait_s = self._interval_s if error.transient else min(2 * before.wait_s, _LONGEST_WAIT_S)
            return _Attempt(now_s, max(wait_s, self._interval_s), problem=problem)
        return _Attempt(now_s, self._interval_s, written=tuple(seen))

    def _due(self, uid: str, facts: Sequence[_Facts], now_s: float) -> bool:
        attempt = self._attempts.get(uid)
        if attempt is None:
            return True
        if now_s - attempt.at_s < attempt.wait_s or facts == attempt.judged:
            return False
        written, reports = attempt.written, _compose_all(facts)
        if len(written) != len(reports) or any(map(notable, written, reports)):
            return True
        attempt.judged = facts
        return False


def _compose_all(facts: Sequence[_Facts]) -> tuple[Report, ...]:
    return tuple(compose(seen, healthy=healthy, resized=resized) for seen, healthy, resized in facts)
