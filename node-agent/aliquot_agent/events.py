# SPDX-License-Identifier: Apache-2.0
"""Kubernetes Events, written by a thread of their own: a caller never waits, and never fails.

The same words about the same object are one Event with a count. What comes faster than it can be written is
dropped: the log has it.
"""

import datetime
import hashlib
import logging
import queue
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aliquot_agent.errors import ApiError
from aliquot_agent.loops import Loop

logger = logging.getLogger(__name__)

COMPONENT: Final = "aliquot-agent"
_WAITING: Final = 256
_REMEMBERED: Final = 512
_PAUSE_S: Final = 0.2
"""Between two writes of this node."""
_AGAIN_S: Final = 30.0
"""Least time between two counts of one Event."""
_LONGEST_MESSAGE: Final = 1000
"""The API server takes 1024 characters."""


class EventApi(Protocol):
    """Where Events go (kube.Kube)."""

    def create_event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Creates an Event; raises ApiError."""

    def patch_event(self, namespace: str, name: str, change: dict[str, Any]) -> None:
        """Merges a change into an Event; raises ApiError."""


@dataclass(frozen=True, slots=True)
class _About:
    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class _Said:
    about: _About
    reason: str
    message: str
    warning: bool


@dataclass(slots=True)
class _Written:
    name: str
    count: int
    at_s: float


class Events:
    """Tells people about pods, claims and the node. `start`, then `stop`."""

    def __init__(self, *, api: EventApi, node: str, monotonic_s: Callable[[], float]) -> None:
        self._api = api
        self._node = node
        self._monotonic_s = monotonic_s
        self._queue: queue.Queue[_Said] = queue.Queue(maxsize=_WAITING)
        self._written: OrderedDict[_Said, _Written] = OrderedDict()
        self._loop = Loop(name="events", step=self.write_waiting, period_s=5.0)

    def start(self) -> None:
        """Begins to write."""
        self._loop.start()

    def stop(self) -> None:
        """Ends; what waits is lost."""
        self._loop.stop()

    def pod(
        self, *, namespace: str, name: str, uid: str, reason: str, message: str, warning: bool = True
    ) -> None:
        """Says something about a pod."""
        self._say(_About("Pod", "v1", namespace, name, uid), reason, message, warning)

    def claim(
        self, *, namespace: str, name: str, uid: str, reason: str, message: str, warning: bool = True
    ) -> None:
        """Says something about a ResourceClaim."""
        about = _About("ResourceClaim", "resource.k8s.io/v1", namespace, name, uid)
        self._say(about, reason, message, warning)

    def node(self, reason: str, message: str, *, warning: bool = True) -> None:
        """Says something about this node, named as kubelet names it: its name stands for its UID."""
        self._say(_About("Node", "v1", "", self._node, self._node), reason, message, warning)

    def _say(self, about: _About, reason: str, message: str, warning: bool) -> None:
        said = _Said(about, reason, message[:_LONGEST_MESSAGE], warning)
        try:
            self._queue.put_nowait(said)
        except queue.Full:
            logger.warning("event dropped", extra={"reason": reason, "about": about.name})
        self._loop.poke()

    def write_waiting(self) -> None:
        """Writes what waits."""
        while not self._loop.stopping:
            try:
                said = self._queue.get_nowait()
            except queue.Empty:
                return
            try:
                self._write(said)
            except ApiError as error:
                logger.warning("event not written", extra={"reason": said.reason, "error": str(error)})
            self._loop.pause(_PAUSE_S)

    def _write(self, said: _Said) -> None:
        now_s = self._monotonic_s()
        before = self._written.get(said)
        if before is not None and now_s - before.at_s < _AGAIN_S:
            return
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = said.about.namespace or "default"
        if before is not None:
            try:
                change = {"count": before.count + 1, "lastTimestamp": stamp}
                self._api.patch_event(namespace, before.name, change)
            except ApiError as error:
                if error.status != 404:  # the server forgets Events after an hour
                    raise
            else:
                self._written[said] = _Written(before.name, before.count + 1, now_s)
                return
        key = hashlib.sha256(repr((said, stamp)).encode()).hexdigest()[:16]
        name = f"{said.about.name[:200]}.{key}"
        self._api.create_event(_event(said, name=name, namespace=namespace, stamp=stamp, node=self._node))
        self._written[said] = _Written(name, 1, now_s)
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)


def _event(said: _Said, *, name: str, namespace: str, stamp: str, node: str) -> dict[str, Any]:
    about = said.about
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            "uid": about.uid,
            **({"namespace": about.namespace} if about.namespace else {}),
        },
        "type": "Warning" if said.warning else "Normal",
        "reason": said.reason,
        "message": said.message,
        "source": {"component": COMPONENT, "host": node},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
