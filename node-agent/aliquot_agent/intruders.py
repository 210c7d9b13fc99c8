# SPDX-License-Identifier: Apache-2.0
"""Ends pods that hold a share and could lift its limit (a privileged container, hostPID, ...): it is a wish.

Prepare refuses the first pod of a claim (`reader`), but kubelet asks once for a claim: a second pod, or an
ephemeral container in a running one, comes without our being asked. Handled by the share's policy, as memory
above its quota is: `warn` says it, `kill` and `evict` evict the pod, respecting its disruption budget.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.enforce import PodEvents, policy_of
from aliquot_agent.errors import ApiError
from aliquot_agent.loops import Loop
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.pods import Pod
from aliquot_api.config import OverQuota

logger = logging.getLogger(__name__)

EVENT: Final = "GPUSharePrivileged"
_PERIOD_S: Final = 30.0


class Evictions(Protocol):
    """Where evictions are asked for (kube.Kube)."""

    def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evicts exactly this pod; raises ApiError."""


class PodBook(Protocol):
    """The node's pods (pods.Pods)."""

    def reaching_beyond(self) -> tuple[Pod, ...]:
        """Those that reach beyond a share."""


class Intruders:
    """The loop. `start`, `poke` when pods changed, `stop`."""

    def __init__(
        self,
        *,
        api: Evictions,
        pods: PodBook,
        claims: Callable[[], tuple[PreparedClaim, ...]],
        policy: Callable[[], NodePolicy],
        events: PodEvents,
    ) -> None:
        self._api = api
        self._pods = pods
        self._claims = claims
        self._policy = policy
        self._events = events
        self._loop = Loop(name="intruders", step=self.look, period_s=_PERIOD_S)

    def start(self) -> None:
        """Begins to look."""
        self._loop.start()

    def stop(self) -> None:
        """Ends it."""
        self._loop.stop()

    def poke(self) -> None:
        """Looks now."""
        self._loop.poke()

    def look(self) -> None:
        """Handles each pod that reaches beyond a share and holds one."""
        for pod in self._pods.reaching_beyond():
            wanted = [
                policy_of(share, node=self._policy(), namespace=pod.namespace) for share in self._shares(pod)
            ]
            if wanted:
                evicts = any(each is not OverQuota.WARN for each in wanted)
                self._say(pod, "the pod is evicted" if evicts else "nothing is done (overQuota: warn)")
                if evicts:
                    self._evict(pod)

    def _shares(self, pod: Pod) -> Iterator[PreparedShare]:
        for claim in self._claims():
            if pod.holds(claim):
                yield from (share for share in claim.shares if not share.whole)

    def _evict(self, pod: Pod) -> None:
        try:
            self._api.evict(pod.namespace, pod.name, pod.uid)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another pod has its name now
                logger.warning("eviction refused", extra={"pod_uid": pod.uid, "error": str(error)})
                self._say(pod, f"it cannot be evicted: {error}")

    def _say(self, pod: Pod, done: str) -> None:
        message = f"the limit of the pod's share cannot be held against it: {pod.privilege}: {done}"
        logger.warning("pod could lift its limit", extra={"pod": pod.name, "what": message})
        self._events.pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, reason=EVENT, message=message)
