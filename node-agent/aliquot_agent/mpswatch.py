# SPDX-License-Identifier: Apache-2.0
"""Tells of lost MPS daemons: the pods whose programs failed with them, the node, and a counter.

The keeper of sharing replaces the daemon and counts in its files; it knows no pods.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from aliquot_agent import held
from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.kept import Kept
from aliquot_agent.loops import Loop
from aliquot_agent.pods import Pod
from aliquot_agent.unchanged import same_objects
from aliquot_api import modes

EVENT: Final = "GPUShareMpsDaemonLost"
_PERIOD_S: Final = 1.0


class EventSink(Protocol):
    """Where events go (events.Events)."""

    def pod(self, *, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        """Notes an event about a pod."""

    def node(self, reason: str, message: str) -> None:
        """Notes an event about this node."""


class MpsWatch:
    """The loop. `start`, then `stop`; `lost` at any time."""

    def __init__(
        self,
        *,
        claims: Callable[[], Sequence[PreparedClaim]],
        kept: Callable[[str], Kept | None],
        holders: Callable[[PreparedClaim], Sequence[Pod]],
        events: EventSink,
    ) -> None:
        self._claims = claims
        self._kept = kept
        self._holders = holders
        self._events = events
        self._known: Sequence[PreparedClaim] = ()
        self._users: dict[str, list[PreparedClaim]] = {}
        self._seen: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self._loop = Loop(name="mps", step=self.look, period_s=_PERIOD_S)

    def start(self) -> None:
        """Begins to look."""
        self._loop.start()

    def stop(self) -> None:
        """Ends it."""
        self._loop.stop()

    def lost(self) -> Mapping[str, int]:
        """Daemons lost since this agent looks, by GPU UUID."""
        return dict(self._lost)

    def look(self) -> None:
        """Compares what the keeper has counted with what it had counted at the last look."""
        claims = self._claims()
        if not same_objects(self._known, claims):
            self._known, self._users = claims, _users_of_mps(claims)
        seen = {}
        for gpu_uuid, users in self._users.items():
            kept = self._kept(gpu_uuid) or Kept(modes.MPS)
            seen[gpu_uuid] = kept.lost
            more = kept.lost - self._seen.get(gpu_uuid, kept.lost)
            if more > 0:
                self._lost[gpu_uuid] = self._lost.get(gpu_uuid, 0) + more
                self._tell(gpu_uuid, users, kept.problem)
        self._seen = seen

    def _tell(self, gpu_uuid: str, claims: Sequence[PreparedClaim], problem: str) -> None:
        message = (
            f"the MPS daemon of GPU {gpu_uuid} was lost, and programs that used the GPU have failed with it "
            f"(CUDA_ERROR_MPS_RPC_FAILURE and the like): they have to be started anew"
        )
        if problem:
            message += f"; the new daemon: {problem}"
        self._events.node(EVENT, message)
        for pod in {pod.uid: pod for claim in claims for pod in self._holders(claim)}.values():
            self._events.pod(
                namespace=pod.namespace, name=pod.name, uid=pod.uid, reason=EVENT, message=message
            )


def _users_of_mps(claims: Sequence[PreparedClaim]) -> dict[str, list[PreparedClaim]]:
    """Claims with a share that is held by MPS, by GPU UUID."""
    users: dict[str, list[PreparedClaim]] = {}
    for claim in claims:
        for share in claim.shares:
            if not share.whole and held.mode_of(share) == modes.MPS:
                users.setdefault(share.gpu_uuid, []).append(claim)
    return users
