# SPDX-License-Identifier: Apache-2.0
"""Writes each claim's use into its `status.devices[]`, rarely.

On change beyond 1 % of the limit or 64 MiB, at most once per interval for a claim and twice a second for
the node. Server-side apply with a field manager per node: entries of other drivers stay as they are.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.errors import ApiError
from aliquot_agent.region import Usage
from aliquot_agent.watcher import Observation
from aliquot_api.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION
from aliquot_api.quantity import MIB

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
"""Between two writes of this node."""
_NOTABLE_BYTES: Final = 64 * MIB
_NOTABLE_PERCENT: Final = 1


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
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "reason": "Prepared",
                            "message": "",
                            "lastTransitionTime": claim.prepared_at,
                        }
                    ],
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


def notable(old: Usage, new: Usage) -> bool:
    """Whether the difference is worth a write."""
    threshold = min(_NOTABLE_BYTES, new.limit_bytes * _NOTABLE_PERCENT // 100)
    if (old.limit_bytes, old.denied, old.processes) != (new.limit_bytes, new.denied, new.processes):
        return True
    return max(abs(old.used_bytes - new.used_bytes), abs(old.peak_bytes - new.peak_bytes)) > threshold


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
        self._written: dict[str, tuple[float, tuple[Usage, ...]]] = {}
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
        self._written = {uid: written for uid, written in self._written.items() if uid in by_claim}
        due = [uid for uid, seen in by_claim.items() if self._due(uid, seen, now_s)]
        if not due:
            return None
        uid = min(due, key=lambda candidate: self._written.get(candidate, (float("-inf"), ()))[0])
        seen = by_claim[uid]
        claim = seen[0].claim
        usages = tuple(observation.usage for observation in seen)
        try:
            body = build(claim, seen)
            self._api.apply_claim_status(claim.namespace, claim.name, body, manager=self._manager)
        except ApiError as error:
            usages = ()  # try again after the interval
            if error.status != 404:
                logger.warning("report not written", extra={"claim_uid": uid, "error": str(error)})
        self._written[uid] = (now_s, usages)
        return uid

    def _due(self, uid: str, seen: Sequence[Observation], now_s: float) -> bool:
        written = self._written.get(uid)
        if written is None:
            return True
        at_s, usages = written
        if now_s - at_s < self._interval_s:
            return False
        return len(usages) != len(seen) or any(
            notable(old, observation.usage) for old, observation in zip(usages, seen, strict=True)
        )
