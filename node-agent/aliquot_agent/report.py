# SPDX-License-Identifier: Apache-2.0
"""Writes each claim's use into its `status.devices[]`, rarely.

On change beyond 1 % of the limit or 64 MiB, at most once per interval for a claim and twice a second for
the node. Server-side apply with a field manager per node: entries of other drivers stay as they are.
A claim whose report the server refuses is left alone for longer each time, up to five minutes.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.errors import ApiError
from aliquot_agent.watcher import Observation
from aliquot_api.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION
from aliquot_api.quantity import MIB

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
"""Between two writes of this node."""
_NOTABLE_BYTES: Final = 64 * MIB
_NOTABLE_PERCENT: Final = 1
_LONGEST_WAIT_S: Final = 300.0


class StatusApi(Protocol):
    """Where reports go (kube.Kube)."""

    def apply_claim_status(self, namespace: str, name: str, body: dict[str, Any], *, manager: str) -> None:
        """Server-side apply of a claim's status; raises ApiError."""


def build(claim: PreparedClaim, observations: Sequence[Observation]) -> dict[str, Any]:
    """The status to apply."""
    return {
        "apiVersion": f"{RESOURCE_GROUP}/{RESOURCE_VERSION}",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {
            "devices": [
                {
                    "driver": DRIVER,
                    "pool": observation.share.pool,
                    "device": observation.share.device,
                    "shareID": observation.share.share,
                    "conditions": _conditions(observation),
                    "data": {
                        "limit": observation.usage.limit_bytes,
                        "used": observation.usage.used_bytes,
                        "peak": observation.usage.peak_bytes,
                        "denied": observation.usage.denied,
                        "processes": observation.usage.processes,
                    },
                }
                for observation in observations
            ]
        },
    }


def _conditions(observation: Observation) -> list[dict[str, str]]:
    ready = _condition("Ready", "Prepared", since=observation.claim.prepared_at)
    damage = observation.damage
    if damage is None:
        return [ready]
    message = f"{damage.message}; the share's use is told by the driver alone"
    return [ready, _condition("LedgerDamaged", "WrittenOver", since=damage.since, message=message)]


def _condition(kind: str, reason: str, *, since: str, message: str = "") -> dict[str, str]:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def notable(before: Observation, after: Observation) -> bool:
    """Whether the difference is worth a write."""
    old, new = before.usage, after.usage
    if before.damage != after.damage:
        return True
    threshold = min(_NOTABLE_BYTES, new.limit_bytes * _NOTABLE_PERCENT // 100)
    if (old.limit_bytes, old.denied, old.processes) != (new.limit_bytes, new.denied, new.processes):
        return True
    return max(abs(old.used_bytes - new.used_bytes), abs(old.peak_bytes - new.peak_bytes)) > threshold


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The last write for one claim."""

    at_s: float
    wait_s: float
    """Until the next."""
    written: tuple[Observation, ...] = ()
    """Empty when it failed."""
    problem: str = ""


class Reporter:
    """The loop. `start`, then `stop`."""

    def __init__(
        self,
        *,
        api: StatusApi,
        node: str,
        observations: Callable[[], Sequence[Observation]],
        interval_s: float,
    ) -> None:
        self._api = api
        self._manager = f"aliquot-agent-{node}"[:128]
        self._observations = observations
        self._interval_s = interval_s
        self._attempts: dict[str, _Attempt] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="reporter")

    def start(self) -> None:
        """Begins to report."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the loop."""
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self.report_one(now_s=time.monotonic())

    def report_one(self, *, now_s: float) -> str | None:
        """Writes the one claim that has waited longest and has news; its UID."""
        by_claim: dict[str, list[Observation]] = {}
        for observation in self._observations():
            by_claim.setdefault(observation.claim.uid, []).append(observation)
        self._attempts = {uid: attempt for uid, attempt in self._attempts.items() if uid in by_claim}
        due = [uid for uid, seen in by_claim.items() if self._due(uid, seen, now_s)]
        if not due:
            return None
        never = _Attempt(at_s=float("-inf"), wait_s=self._interval_s)
        uid = min(due, key=lambda candidate: self._attempts.get(candidate, never).at_s)
        self._attempts[uid] = self._write(by_claim[uid], before=self._attempts.get(uid, never), now_s=now_s)
        return uid

    def _write(self, seen: Sequence[Observation], *, before: _Attempt, now_s: float) -> _Attempt:
        claim = seen[0].claim
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

    def _due(self, uid: str, seen: Sequence[Observation], now_s: float) -> bool:
        attempt = self._attempts.get(uid)
        if attempt is None:
            return True
        if now_s - attempt.at_s < attempt.wait_s:
            return False
        written = attempt.written
        return len(written) != len(seen) or any(map(notable, written, seen))
