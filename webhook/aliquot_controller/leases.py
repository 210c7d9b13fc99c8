# SPDX-License-Identifier: Apache-2.0
"""Chooses one of several controllers by a Lease (coordination.k8s.io), as kube-controller-manager does.

A candidate compares no clocks: a lease is over when it has not changed for its duration, by the candidate's
own monotonic clock. Two that believe to lead for a moment do no harm, because every write of the controller
names the version that it has read; the election only saves the API server the work of the others.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from aliquot_api.wire import JsonObject, dig, obj, text
from aliquot_webhook.kube import Api, ApiError

logger = logging.getLogger(__name__)

_API_VERSION: Final = "coordination.k8s.io/v1"


class Leader:
    """One candidate. `step` is called again and again by a loop; `leads` may be asked from any thread."""

    def __init__(
        self,
        *,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._collection = f"/apis/{_API_VERSION}/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._clock = clock
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = clock()
        self._leads_until = clock()

    @property
    def leads(self) -> bool:
        """Whether this candidate's own lease is not over yet."""
        return self._clock() < self._leads_until

    def step(self) -> float:
        """Take or renew the lease if that is possible; seconds until the next try. Raises ApiError."""
        began = self._clock()
        led = self.leads
        lease = self._read()
        if lease is not None and not self._may_take(lease):
            self._leads_until = began
        elif self._write(lease):
            # From before the write: others count from when they see it.
            self._leads_until = began + self._duration_s * 2 / 3
        if self.leads != led:
            logger.info("leads" if self.leads else "does not lead", extra={"identity": self._identity})
        return self._duration_s / 5

    def release(self) -> None:
        """Give the lease up, so that the next one need not wait. An unreachable server is no error."""
        if not self.leads:
            return
        self._leads_until = self._clock()
        try:
            lease = self._read()
            if lease is not None and _holder(lease) == self._identity:
                self._put(lease, holder="")
        except ApiError as error:
            logger.info("lease is not given back", extra={"error": error.message})

    def _may_take(self, lease: JsonObject) -> bool:
        seen = (_holder(lease), text(dig(lease, "metadata", "resourceVersion")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        return seen[0] in ("", self._identity) or self._clock() - self._seen_at > self._duration_s

    def _read(self) -> JsonObject | None:
        try:
            return self._api.call("GET", f"{self._collection}/{self._name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _write(self, lease: JsonObject | None) -> bool:
        try:
            if lease is None:
                self._api.call(
                    "POST", self._collection, body=self._body({"name": self._name}, self._identity)
                )
            else:
                self._put(lease, holder=self._identity)
        except ApiError as error:
            if error.status == 409:  # somebody else was quicker
                return False
            raise
        return True

    def _put(self, lease: JsonObject, *, holder: str) -> None:
        body = self._body(obj(lease.get("metadata")), holder)
        self._api.call("PUT", f"{self._collection}/{self._name}", body=body)

    def _body(self, metadata: JsonObject, holder: str) -> JsonObject:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": _API_VERSION,
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(self._duration_s)),
                "renewTime": now,
            },
        }


def _holder(lease: JsonObject) -> str:
    return text(dig(lease, "spec", "holderIdentity"))
