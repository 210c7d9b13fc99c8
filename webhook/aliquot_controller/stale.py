# SPDX-License-Identifier: Apache-2.0
"""Finds claims that keep GPUs for pods that are gone or have ended, and releases them by the API's own rules.

kube-controller-manager does this within seconds. What is left after minutes is what it has missed: claims
whose reservation outlived its pod, claims that were allocated and never reserved, claims of completed pods. A
pod that is only terminating (a lost node) keeps its claim: its processes may be alive.

A release is what kube-controller-manager would do: `status.reservedFor` and `status.allocation` are cleared
in one write that names the version in which the claim was judged, then a claim that was made for a pod is
deleted.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, items, obj, only, text
from aliquot_webhook.kube import MERGE_PATCH, ApiError, ListApi
from aliquot_webhook.templates import ROOT

logger = logging.getLogger(__name__)

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
_ENDED: Final = ("Succeeded", "Failed")


class Report(Protocol):
    """Where findings go."""

    def __call__(self, claim: JsonObject, *, reason: str, message: str) -> None:
        """An event on the claim."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    version: str
    since_s: float
    is_reported: bool = False


class StaleClaimFinder:
    """Looks again and again; acts on a claim that has been idle for `after_s` in one and the same version."""

    def __init__(
        self,
        *,
        api: ListApi,
        after_s: float,
        may_release: bool,
        report: Report,
        on_release: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._after_s = after_s
        self._may_release = may_release
        self._report = report
        self._on_release = on_release
        self._clock = clock
        self._suspects: dict[str, _Suspect] = {}

    def look(self) -> int:
        """Release or report what is due; how many stale claims are left. Raises ApiError."""
        claims, _ = self._api.list_all(f"{ROOT}/resourceclaims", {}, _held)
        held: dict[str, list[JsonObject]] = {}
        for claim in claims:
            held.setdefault(text(dig(claim, "metadata", "namespace")), []).append(claim)
        suspects: dict[str, _Suspect] = {}
        stale = 0
        for namespace, candidates in sorted(held.items()):
            # After the claims were read: a pod that reserved one is in this list, or is gone.
            pods, _ = self._api.list_all(f"/api/v1/namespaces/{namespace}/pods", {}, _living)
            living = {text(dig(pod, "metadata", "uid")) for pod in pods}
            for claim in candidates:
                if living.isdisjoint(_pods_of(claim)):
                    uid = text(dig(claim, "metadata", "uid"))
                    suspect = self._suspect(uid, claim)
                    if self._clock() - suspect.since_s >= self._after_s:
                        suspect = _Suspect(suspect.version, suspect.since_s, is_reported=True)
                        stale += not self._act(claim, is_new=not self._was_reported(uid))
                    suspects[uid] = suspect
        self._suspects = suspects
        return stale

    def _suspect(self, uid: str, claim: JsonObject) -> _Suspect:
        version = text(dig(claim, "metadata", "resourceVersion"))
        known = self._suspects.get(uid)
        return known if known and known.version == version else _Suspect(version, self._clock())

    def _was_reported(self, uid: str) -> bool:
        return uid in self._suspects and self._suspects[uid].is_reported

    def _act(self, claim: JsonObject, *, is_new: bool) -> bool:
        """Whether the claim is released."""
        pods = ", ".join(sorted(_pod_names(claim))) or "none"
        place = {
            "namespace": text(dig(claim, "metadata", "namespace")),
            "claim": text(dig(claim, "metadata", "name")),
        }
        if not self._may_release:
            if is_new:
                logger.warning("stale claim", extra=place)
                message = f"keeps GPUs although its pods ({pods}) are gone or have ended"
                self._report(claim, reason="StaleClaim", message=message)
            return False
        try:
            self._release(claim)
        except ApiError as error:
            level = logging.DEBUG if error.status in (404, 409) else logging.WARNING
            logger.log(level, "stale claim stays", extra={**place, "error": error.message})
            return error.status in (404, 409)
        self._on_release()
        logger.warning("released stale claim", extra=place)
        message = f"released: its pods ({pods}) are gone or have ended"
        self._report(claim, reason="StaleClaimReleased", message=message)
        return True

    def _release(self, claim: JsonObject) -> None:
        metadata = obj(claim.get("metadata"))
        path = f"{ROOT}/namespaces/{metadata['namespace']}/resourceclaims/{metadata['name']}"
        judged = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        body = {"metadata": judged, "status": {"reservedFor": None, "allocation": None}}
        live = self._api.call("PATCH", f"{path}/status", body=body, content_type=MERGE_PATCH)
        finalizers = items(dig(live, "metadata", "finalizers"))
        if FINALIZER in finalizers:
            left = [each for each in finalizers if each != FINALIZER]
            seen = {"resourceVersion": dig(live, "metadata", "resourceVersion"), "finalizers": left}
            live = self._api.call("PATCH", path, body={"metadata": seen}, content_type=MERGE_PATCH)
        if _owner(claim) is not None and dig(live, "metadata", "deletionTimestamp") is None:
            preconditions = {
                "uid": metadata["uid"],
                "resourceVersion": dig(live, "metadata", "resourceVersion"),
            }
            options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
            self._api.call("DELETE", path, body=options)


def _held(claim: JsonObject) -> JsonObject | None:
    """What counts of a claim that is allocated from our GPUs, and not for something that is no pod."""
    results = items(dig(claim, "status", "allocation", "devices", "results"))
    consumers = items(dig(claim, "status", "reservedFor"))
    if any(dig(each, "driver") == names.DRIVER for each in results) and all(
        dig(each, "resource") == "pods" and not dig(each, "apiGroup") for each in consumers
    ):
        about = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")
        return only(claim, metadata=about, status=("reservedFor",))
    return None


def _pods_of(claim: JsonObject) -> set[str]:
    """UIDs of the pods that it is, or was made, for."""
    uids = {text(dig(each, "uid")) for each in items(dig(claim, "status", "reservedFor"))}
    owner = _owner(claim)
    return uids if owner is None else uids | {text(owner.get("uid"))}


def _pod_names(claim: JsonObject) -> set[str]:
    found = {text(dig(each, "name")) for each in items(dig(claim, "status", "reservedFor"))}
    owner = _owner(claim)
    return found if owner is None else found | {text(owner.get("name"))}


def _owner(claim: JsonObject) -> JsonObject | None:
    """The pod that it was made for."""
    for each in items(dig(claim, "metadata", "ownerReferences")):
        if dig(each, "kind") == "Pod" and dig(each, "controller") is True:
            return obj(each)
    return None


def _living(pod: JsonObject) -> JsonObject | None:
    """The UID of a pod that has not ended."""
    return None if dig(pod, "status", "phase") in _ENDED else only(pod, metadata=("uid",))
