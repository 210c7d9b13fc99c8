# SPDX-License-Identifier: Apache-2.0
"""Reads claims and the pods that hold them, with patience: one failed Prepare costs a pod some 80 s."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from aliquot_agent import allocation
from aliquot_agent.allocation import Result
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.errors import ApiError, NotOurs, Refused

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 2.0


class ClaimSource(Protocol):
    """Where claims are read (kube.Kube)."""

    def get_claim(self, namespace: str, name: str) -> dict[str, Any]:
        """A ResourceClaim; raises ApiError."""


Privilege = Callable[[str, str, str], str]
"""What lets a pod (namespace, name, UID) reach beyond a share; empty: nothing does. Raises ApiError."""


class Reader:
    """What Prepare asks of the server. Thread-safe."""

    def __init__(self, *, source: ClaimSource, privilege: Privilege) -> None:
        self._source = source
        self._privilege = privilege

    def claim(self, namespace: str, name: str, *, deadline: float, known: bool) -> dict[str, Any] | None:
        """The claim; None when the server is away and the caller knows it already (`known`)."""

        def read() -> dict[str, Any] | None:
            try:
                return self._source.get_claim(namespace, name)
            except ApiError as error:
                if error.status == 404:
                    raise Refused(f"there is no claim {namespace}/{name}") from error
                if known and error.transient:
                    return None
                raise

        return _patiently(read, what=f"claim {namespace}/{name}", deadline=deadline)

    def gone(self, claim: PreparedClaim, *, node: str) -> bool:
        """Whether a claim no longer holds the allocation that it was prepared for."""
        try:
            current = self._source.get_claim(claim.namespace, claim.name)
            results = allocation.own_results(current, uid=claim.uid, node=node)
        except ApiError as error:
            return error.status == 404
        except NotOurs:
            return True
        except Refused:  # written for another version of us; whoever holds it may be running
            return False
        return not same(claim, results)

    def refuse_privileged(self, claim: Mapping[str, Any], *, deadline: float) -> None:
        """Raises Refused where a pod that a share's claim is for could lift the limit: it would be a wish.

        The webhook refuses it as well, but a pod with a hand-written claim is admitted while no webhook runs.
        """
        namespace = str(claim["metadata"]["namespace"])
        for holder in (claim.get("status") or {}).get("reservedFor") or []:
            if holder.get("resource") != "pods":
                continue
            name, uid = str(holder["name"]), str(holder["uid"])

            def read(name: str = name, uid: str = uid) -> str:
                return self._privilege(namespace, name, uid)

            privilege = _patiently(read, what=f"pod {namespace}/{name}", deadline=deadline)
            if privilege:
                raise Refused(f"pod {name} could lift the limit of its share: {privilege}")


def same(entry: PreparedClaim, results: Sequence[Result]) -> bool:
    """Whether the checkpoint is of this very allocation."""

    def key(of: PreparedShare | Result) -> tuple[str | int, ...]:
        return (of.share, of.request, of.device, of.memory_bytes, of.cores_percent, of.shares)

    return sorted(map(key, entry.shares)) == sorted(map(key, results))


def _patiently(read: Callable[[], T], *, what: str, deadline: float) -> T:
    delay = _RETRY_S
    while True:
        try:
            return read()
        except ApiError as error:
            if not error.transient or time.monotonic() + delay > deadline:
                raise Refused(f"{what} cannot be read: {error}") from error
            logger.warning("reading again", extra={"what": what, "error": str(error)})
        time.sleep(delay)
        delay = min(2 * delay, _LONGEST_RETRY_S)
