# SPDX-License-Identifier: Apache-2.0
"""What of the agent the thread that holds cores needs: prepared shares, their processes, NVML, and an ear."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from aliquot_agent.attribution import Key
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.claims import Claims
from aliquot_agent.compute import Compute
from aliquot_agent.hardware import Hardware
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.nvml import Use
from aliquot_agent.pacing import Paced, PacedShare, paced_share
from aliquot_agent.picture import Picture
from aliquot_agent.unchanged import same_objects

EVENT: Final = "GPUShareEscapesPacing"


_Decided = tuple[PreparedClaim, PreparedShare, NodePolicy]
"""What a share's pacing comes from."""


class EventSink(Protocol):
    """Where events go (events.Events)."""

    def claim(self, *, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        """Notes an event about a claim."""


class Cores:
    """The thread with its sources. `start`, then `stop`; `paced`, `untold` and `escape` at any time."""

    def __init__(
        self,
        *,
        claims: Claims,
        policy: Callable[[], NodePolicy],
        hardware: Hardware,
        picture: Callable[[], Picture],
        events: EventSink,
    ) -> None:
        self._claims = claims
        self._policy = policy
        self._hardware = hardware
        self._picture = picture
        self._events = events
        self._known: dict[Key, tuple[_Decided, PacedShare]] = {}
        self._of: tuple[NodePolicy | None, Sequence[PreparedClaim]] = (None, ())
        self._shares_of: list[PacedShare] = []
        self._compute = Compute(
            shares=self._shares, users=self._users, use=self._use, escaped=self._tell_escape
        )

    def start(self) -> None:
        """Begins."""
        self._compute.start()

    def stop(self) -> None:
        """Ends; loans expire."""
        self._compute.stop()

    def untold(self) -> frozenset[str]:
        """UUIDs of GPUs whose driver does not tell who uses them."""
        return self._compute.untold()

    def paced(self) -> Mapping[Key, Paced]:
        """What is known of each share's GPU time."""
        return self._compute.paced()

    def escape(self, key: Key) -> str:
        """How a share uses more than it may; empty: it does not."""
        paced = self._compute.paced().get(key)
        return "" if paced is None else paced.escape

    def _shares(self) -> list[PacedShare]:
        """Those of now; while nothing is decided anew about one, the same object as a second ago."""
        node, claims = self._policy(), self._claims.prepared()
        if node is not self._of[0] or not same_objects(self._of[1], claims):
            self._of = node, claims
            self._decide(node, claims)
        return self._shares_of

    def _decide(self, node: NodePolicy, claims: Sequence[PreparedClaim]) -> None:
        before, self._known = self._known, {}
        for claim in claims:
            for share in claim.shares:
                if not share.whole:
                    decided = (claim, share, node)
                    known = before.get((claim.uid, share.share))
                    if known is None or any(
                        old is not new for old, new in zip(known[0], decided, strict=True)
                    ):
                        path = self._claims.share_dir(claim, share)
                        known = decided, paced_share(claim, share, path=path, node=node)
                    self._known[claim.uid, share.share] = known
        self._shares_of = [paced for _, paced in self._known.values()]

    def _users(self) -> dict[int, Key]:
        return {
            pid: (seen.claim.uid, seen.share.share)
            for seen in self._picture().observations
            for pid in seen.host_pids
        }

    def _use(self, gpu_uuid: str, since_us: int) -> Sequence[Use] | None:
        nvml = self._hardware.nvml
        return () if nvml is None else nvml.use(gpu_uuid, since_us=since_us)

    def _tell_escape(self, share: PacedShare, words: str) -> None:
        for claim in self._claims.prepared():
            if claim.uid == share.key[0]:
                self._events.claim(
                    namespace=claim.namespace, name=claim.name, uid=claim.uid, reason=EVENT, message=words
                )
