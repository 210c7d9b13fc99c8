# SPDX-License-Identifier: Apache-2.0
"""Carries out live resizes, growth beyond what a claim consumed among them, in steps that survive any kill:

1. the grant is recorded in the checkpoint, which takes it off the published capacity;
2. the lowered capacity is on the server, and stays there for a settle time: what the scheduler had decided
   before is written by then;
3. every claim that is allocated is counted: where all fit beside the grant, it goes into the checkpoint's
   limit, and from there into the quota; else it is dropped.

A claim that was allocated on the old capacity all the same is met at its Prepare, which takes growth back
(`claims`). After a restart the checkpoint tells which step is next, and the settle time starts anew.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from aliquot_agent import enforce, outside, resize
from aliquot_agent.checkpoint import Growth, PreparedClaim, PreparedShare
from aliquot_agent.claims import Claims
from aliquot_agent.errors import ApiError
from aliquot_agent.loops import Loop
from aliquot_agent.marks import RESIZED, Mark, now_text
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.picture import Picture
from aliquot_agent.pods import Pod
from aliquot_agent.resize import Reason, Refusal
from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.names import CAPACITY_MEMORY
from aliquot_api.quantity import MIB

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 1.0
_RETRY_S: Final = 5.0
_LONGEST_RETRY_S: Final = 300.0

EVENT_RESIZED: Final = "GPUMemoryResized"
EVENT_REFUSED: Final = "GPUMemoryResizeRefused"


class ResizeApi(Protocol):
    """What a resize asks of the API server (kube.Kube)."""

    def list_claims(self) -> list[dict[str, Any]]:
        """All ResourceClaims; raises ApiError."""

    def list_slices(self, node: str) -> tuple[list[dict[str, Any]], str]:
        """Our slices of a node; raises ApiError."""


class PodBook(Protocol):
    """The pods of this node (pods.Pods)."""

    def holders(self, claim: PreparedClaim) -> tuple[Pod, ...]:
        """The pods that hold a claim."""

    def annotated(self) -> tuple[Pod, ...]:
        """The pods that wish a limit."""


class PodEvents(Protocol):
    """Where people are told (events.Events)."""

    def pod(
        self, *, namespace: str, name: str, uid: str, reason: str, message: str, warning: bool = True
    ) -> None:
        """Says something about a pod."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a wish."""

    reason: Reason
    message: str

    @property
    def good(self) -> bool:
        """Whether the wish is met or on its way."""
        return self.reason in (Reason.APPLIED, Reason.IN_USE, Reason.PENDING)


@dataclass(slots=True)
class _Resize:
    """One share that is or was resized."""

    wished: int | Refusal | None = None
    mark: Mark | None = None
    lowered_at_s: float | None = None
    """When the lowered capacity was found on the server."""
    retry_at_s: float = 0.0
    retry_s: float = _RETRY_S
    refused: Refusal | None = None
    problem: str = ""
    """Why the server could not be asked; logged once."""


class Grower:
    """The loop. `start`, then `stop`; `mark` at any time."""

    def __init__(
        self,
        *,
        api: ResizeApi,
        node: str,
        claims: Claims,
        pods: PodBook,
        events: PodEvents,
        policy: Callable[[], NodePolicy],
        picture: Callable[[], Picture],
        room: Callable[[str], int | None],
        publish: Callable[[], None],
        settle_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._node = node
        self._claims = claims
        self._pods = pods
        self._events = events
        self._policy = policy
        self._picture = picture
        self._room = room
        """What a device could show if nothing was granted; None for one that is not there."""
        self._publish = publish
        self._settle_s = settle_s
        self._monotonic_s = monotonic_s
        self._resizes: dict[str, _Resize] = {}
        self._granted: Mapping[str, int] = {}
        self._loop = Loop(name="grower", step=self.step, period_s=_PERIOD_S)

    def start(self) -> None:
        """Begins to resize."""
        self._loop.start()

    def stop(self) -> None:
        """Ends; the next agent goes on where the checkpoint says."""
        self._loop.stop()

    def poke(self) -> None:
        """A pod changed."""
        self._loop.poke()

    def mark(self, share: str) -> Mark | None:
        """Condition `Resized` of a share; None for one that nobody wanted to resize."""
        found = self._resizes.get(share)
        return found.mark if found is not None else None

    def step(self) -> None:
        """One pass over the shares that a pod wishes to change, or that are not what their claim consumed."""
        annotated = self._pods.annotated()
        claims = self._claims.prepared()
        granted = outside.grants(claims)
        if granted != self._granted:  # a claim with growth ended, or growth was taken back by a Prepare
            self._granted = granted
            self._publish()
        living = {share.share for claim in claims for share in claim.shares}
        self._resizes = {share: each for share, each in list(self._resizes.items()) if share in living}
        for claim in claims:
            wishing = any(pod.holds(claim) for pod in annotated)
            for share in claim.shares:
                moved = share.limit_bytes is not None or share.growth is not Growth.NONE
                if wishing or moved or share.share in self._resizes:
                    try:
                        self._step_share(claim, share)
                    except OSError as error:
                        extra = {"claim_uid": claim.uid, "share": share.share, "error": str(error)}
                        logger.error("share cannot be resized", extra=extra)

    def _step_share(self, claim: PreparedClaim, share: PreparedShare) -> None:
        pods = self._pods.holders(claim)
        if not pods:
            return  # not known yet, or ending: nothing changes
        wished = resize.wish(claim, share, pods)
        if isinstance(wished, int):
            policy = self._policy()
            over_quota = enforce.policy_of(share, node=policy, namespace=claim.namespace)
            wished = resize.refusal(share, wished, policy=policy.resize, over_quota=over_quota) or wished
        state = self._resizes.get(share.share)
        if state is None:
            if wished in (None, share.memory_bytes) and share.limit_bytes is None and not share.grant_bytes:
                return  # as it was admitted
            state = self._resizes[share.share] = _Resize(wished=wished)
        if wished != state.wished:
            state.wished, state.refused, state.retry_at_s, state.retry_s = wished, None, 0.0, _RETRY_S
        if isinstance(wished, Refusal):
            outcome: Outcome | None = Outcome(wished.reason, wished.message)
            self._settle(claim, share, share.limit)  # what is stays
        else:
            outcome = self._move(claim, share, state, wished)
        self._conclude(state, outcome, claim, share, pods)

    def _settle(
        self, claim: PreparedClaim, share: PreparedShare, wished: int | None
    ) -> tuple[PreparedShare | None, int | None]:
        """Moves the limit as far as no growth is needed; the share then, and the quota in force under it."""
        in_force: dict[PreparedShare, int] = {
            each.share: each.usage.limit_bytes
            for each in self._picture().observations
            if each.share.share == share.share
        }

        def change(now: PreparedShare) -> PreparedShare:
            # A quota that was seen under another checkpoint tells nothing of what is in force now.
            seen = in_force.get(now, max(now.limit, now.taken_bytes))
            return resize.settled(now, wished, in_force_bytes=seen)

        after = self._claims.change_share(claim.uid, share.share, change, wait=False)
        if after is None:
            return None, None
        if after.grant_bytes < share.grant_bytes:
            self._publish()
        return after, in_force.get(after)

    def _move(
        self, claim: PreparedClaim, share: PreparedShare, state: _Resize, wished: int | None
    ) -> Outcome | None:
        leaving = share.growth is Growth.LEAVING
        after, in_force = self._settle(claim, share, wished)
        if after is None:
            return None  # it is being prepared or unprepared
        wanted = after.memory_bytes if wished is None else wished
        if leaving and wanted > after.memory_bytes:
            state.refused = Refusal(
                Reason.WITHDRAWN,
                f"growth to {_text(wanted)} was taken back: the scheduler gave the memory to another claim; "
                f"the limit is {_text(after.limit)}",
            )
            state.retry_at_s = self._monotonic_s() + state.retry_s
        if wanted > after.limit:
            return self._grow(claim, after, state, wanted)
        if in_force is None:
            return None  # the watcher has not moved the quota yet
        if in_force > wanted:
            text = f"{_text(wanted)} is wished and {_text(in_force)} in use: the limit follows the use down"
            return Outcome(Reason.IN_USE, text)
        return Outcome(Reason.APPLIED, f"the limit is {_text(wanted)}")

    def _grow(
        self, claim: PreparedClaim, share: PreparedShare, state: _Resize, wanted: int
    ) -> Outcome | None:
        try:
            if share.growth is Growth.ASKED:
                return self._confirm(claim, share, state, wanted)
            state.lowered_at_s = None
            if self._monotonic_s() < state.retry_at_s and state.refused is not None:
                return Outcome(state.refused.reason, state.refused.message)
            return self._ask(claim, share, state, wanted)
        except ApiError as error:
            if state.problem != str(error):
                state.problem = str(error)
                logger.warning("growth waits", extra={"claim_uid": claim.uid, "error": str(error)})
            return _pending(wanted)

    def _ask(self, claim: PreparedClaim, share: PreparedShare, state: _Resize, wanted: int) -> Outcome:
        """Step 1, unless it is plainly in vain: a grant that is dropped again costs two writes."""
        listed: Sequence[Mapping[str, Any]] = ()
        if self._lacking(claim, resize.asked(share, wanted), listed=()) <= 0:
            listed = self._api.list_claims()

        def ask(now: PreparedShare) -> PreparedShare | None:
            after = resize.asked(now, wanted)
            fits = now.growth is not Growth.LEAVING and self._lacking(claim, after, listed=listed) <= 0
            return after if fits else None

        if self._claims.change_share(claim.uid, share.share, ask, wait=False) is None:
            return self._refuse(state, wanted, share)
        self._publish()
        logger.info("growth recorded", extra={"claim_uid": claim.uid, "share": share.share, "bytes": wanted})
        return _pending(wanted)

    def _confirm(
        self, claim: PreparedClaim, share: PreparedShare, state: _Resize, wanted: int
    ) -> Outcome | None:
        """Steps 2 and 3."""
        now_s = self._monotonic_s()
        if wanted != share.taken_bytes:  # wished anew meanwhile: from the start
            self._claims.change_share(claim.uid, share.share, resize.dropped, wait=False)
            return _pending(wanted)
        if not self._is_lowered(share):  # yet, or any more: a write that was on its way may come late
            state.lowered_at_s = None
            self._publish()
            return _pending(wanted)
        if state.lowered_at_s is None:
            state.lowered_at_s = now_s
        if now_s - state.lowered_at_s < self._settle_s:
            return _pending(wanted)
        listed = self._api.list_claims()

        def grant(now: PreparedShare) -> PreparedShare:
            if now.growth is not Growth.ASKED:
                return now  # taken back by a Prepare meanwhile
            fits = self._lacking(claim, now, listed=listed) <= 0
            return resize.granted(now) if fits else resize.dropped(now)

        after = self._claims.change_share(claim.uid, share.share, grant, wait=False)
        if after is None:
            return _pending(wanted)
        state.lowered_at_s = None
        if after.growth is Growth.HELD and after.limit == wanted:
            state.refused = None
            logger.info("growth granted", extra={"claim_uid": claim.uid, "share": share.share})
            return None  # told when the quota is seen to hold it
        self._publish()
        return self._refuse(state, wanted, after)

    def _refuse(self, state: _Resize, wanted: int, share: PreparedShare) -> Outcome:
        text = (
            f"the GPU has no room for growth to {_text(wanted)} beside what its other claims consumed; "
            f"the limit is {_text(share.limit)}"
        )
        state.refused = Refusal(Reason.NO_ROOM, text)
        state.retry_at_s = self._monotonic_s() + state.retry_s
        state.retry_s = min(2 * state.retry_s, _LONGEST_RETRY_S)
        return Outcome(Reason.NO_ROOM, text)

    def _lacking(
        self, claim: PreparedClaim, share: PreparedShare, *, listed: Sequence[Mapping[str, Any]]
    ) -> int:
        """What the device of `share`, as it would be, lacks; in a change of the share: its GPU is locked."""
        room = self._room(share.device)
        if room is None:
            return share.grant_bytes
        prepared = self._claims.prepared()
        try:
            allocated = resize.allocated_bytes(listed, prepared, pool=share.pool, device=share.device)
        except InvalidInput as error:
            logger.warning("a claim's allocation is not understood", extra={"error": str(error)})
            return share.grant_bytes
        others = outside.grants(
            tuple(_without(each, share.share) if each.uid == claim.uid else each for each in prepared)
        )
        return allocated + others.get(share.device, 0) + share.grant_bytes - room

    def _is_lowered(self, share: PreparedShare) -> bool:
        """Whether the server shows the device without what was granted."""
        room = self._room(share.device)
        if room is None:
            return False
        most = room - outside.grants(self._claims.prepared()).get(share.device, 0)
        slices, _ = self._api.list_slices(self._node)
        devices = [device for each in slices for device in each["spec"].get("devices") or []]
        shown = [device for device in devices if device["name"] == share.device]
        return all(_memory_bytes(device) <= max(most, 0) for device in shown)

    def _conclude(
        self,
        state: _Resize,
        outcome: Outcome | None,
        claim: PreparedClaim,
        share: PreparedShare,
        pods: Sequence[Pod],
    ) -> None:
        """Keeps the outcome for the claim's status and tells the pods."""
        if outcome is None:
            return
        before = state.mark
        same = before is not None and (before.status, before.reason) == (outcome.good, str(outcome.reason))
        if before is not None and same and before.message == outcome.message:
            return
        since = before.since if before is not None and before.status == outcome.good else now_text()
        state.mark = Mark(RESIZED, outcome.good, str(outcome.reason), outcome.message, since)
        if same and outcome.reason is Reason.IN_USE:
            return  # the use moves each second
        logger.info("resize", extra={"claim_uid": claim.uid, "share": share.share, "what": outcome.message})
        for pod in pods:
            self._events.pod(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                reason=EVENT_RESIZED if outcome.good else EVENT_REFUSED,
                message=f"request {share.request} of claim {claim.name}: {outcome.message}",
                warning=not outcome.good,
            )


def _without(claim: PreparedClaim, share: str) -> PreparedClaim:
    return replace(claim, shares=tuple(each for each in claim.shares if each.share != share))


def _pending(wanted: int) -> Outcome:
    text = f"growth to {_text(wanted)}: waiting until no other claim can have the memory"
    return Outcome(Reason.PENDING, text)


def _memory_bytes(device: Mapping[str, Any]) -> int:
    return quantity.parse(str(device["capacity"][CAPACITY_MEMORY]["value"]), field="capacity")


def _text(bytes_: int) -> str:
    return f"{bytes_ // MIB}Mi"
