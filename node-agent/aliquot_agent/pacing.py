# SPDX-License-Identifier: Apache-2.0
"""The shares of one GPU, held: reads their ledgers, decides, stores the words of pacing in their quotas."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot_agent import lending, region
from aliquot_agent.attribution import Key
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.correction import Correction, Escape
from aliquot_agent.demand import Demand
from aliquot_agent.lending import Seat
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.nvml import Use
from aliquot_agent.region import Pacing
from aliquot_agent.sharedir import ShareFiles
from aliquot_api.config import ComputePolicy, Priority, Sharing, stricter

_SECOND_NS: Final = 1_000_000_000
LOAN_NS: Final = 150_000_000
"""A loan that is not renewed ends after this."""
_FOREVER_NS: Final = 2**63 - 1
"""A share without a reservation is held until the agent says otherwise: dead, it must not free it."""
_LONGEST_SPAN_NS: Final = _SECOND_NS
"""NVML keeps samples of a second."""
_NEWCOMER_US: Final = 3_000_000
_HIGH: Final = 1
"""`quota.priority`."""


@dataclass(frozen=True, slots=True)
class PacedShare:
    """A share whose cores are to be held."""

    key: Key
    path: Path
    gpu_uuid: str
    reserved_millipercent: int
    policy: ComputePolicy
    priority: Priority = Priority.LOW


@dataclass(frozen=True, slots=True)
class Paced:
    """What is known of a share's GPU time, for metrics and conditions."""

    used_ns: int
    """By the driver, since this agent runs."""
    granted_ns: int
    """By the ledger."""
    reserved_millipercent: int
    lent_millipercent: int
    factor_ppm: int
    escape: str = ""
    """How it uses more than it may have; empty: it does not."""


def paced_share(claim: PreparedClaim, share: PreparedShare, *, path: Path, node: NodePolicy) -> PacedShare:
    """How a prepared share's cores are to be held."""
    return PacedShare(
        key=(claim.uid, share.share),
        path=path,
        gpu_uuid=share.gpu_uuid,
        reserved_millipercent=share.cores_percent * 1000,
        policy=policy_of(share, node=node, namespace=claim.namespace),
        priority=Priority(share.priority) if share.priority else Priority.LOW,
    )


def policy_of(share: PreparedShare, *, node: NodePolicy, namespace: str) -> ComputePolicy:
    """A share's policy: its class's, else its namespace's, else the node's; a claim makes it stricter.

    Where the driver divides the GPU, by time or by SMs, nothing is paced.
    """
    if share.sharing != Sharing.SHIM:
        return ComputePolicy.OFF
    base, wish = share.class_compute_policy, share.claim_compute_policy
    return stricter(
        ComputePolicy(base) if base else node.compute_policy(namespace), ComputePolicy(wish) if wish else None
    )


class SharedGpu:
    """The shares of one GPU."""

    def __init__(self) -> None:
        self._held: dict[Key, _Held] = {}
        self.hot = False
        """Whether somebody could come back to what is lent, or wants more than it has."""
        self.told_us = 0
        """The end of what NVML has told about."""
        self._strangers: dict[int, int] = {}
        """When NVML first told of a process that is nobody's, by host pid."""

    def close(self) -> None:
        for held in self._held.values():
            held.files.close()
        self._held.clear()

    def update(self, shares: Mapping[Key, PacedShare]) -> None:
        """Takes note of which shares are there."""
        for key in list(self._held):
            if key not in shares or self._held[key].files.removed():
                self._held.pop(key).files.close()
        for key, share in shares.items():
            if key in self._held:
                self._held[key].share = share
                self._held[key].repair()
                continue
            with suppress(
                FileNotFoundError, region.DamagedRegion
            ):  # being prepared; the watcher logs the rest
                self._held[key] = _Held(share, ShareFiles(path=share.path))

    def look(self, now_ns: int) -> None:
        """Reads the ledgers and lends."""
        for held in self._held.values():
            held.look(now_ns)
        seats = {key: held.seat() for key, held in self._held.items()}
        lent = lending.lend(seats)
        for key, held in self._held.items():
            held.lend(lent.get(key, 0), now_ns)
        self.hot = any(lent.values()) or any(
            seat.active and seat.borrows and seat.wants > seat.reserved for seat in seats.values()
        )

    def told(
        self, uses: Sequence[Use], users: Mapping[int, Key], *, wall_ahead_ns: int
    ) -> list[tuple[PacedShare, str]]:
        """Compares what NVML says with the ledgers; who has begun to escape, with words."""
        end_us = max(use.stamp_us for use in uses)
        span_ns = min((end_us - self.told_us) * 1000, _LONGEST_SPAN_NS) if self.told_us else 0
        self.told_us = end_us
        if span_ns <= 0:
            return []
        used: dict[Key, int] = {}
        strangers: dict[int, int] = {}
        for use in uses:
            key = users.get(use.host_pid)
            if key is None:
                strangers[use.host_pid] = self._strangers.get(use.host_pid, end_us)
            elif (end_us - use.stamp_us) * 1000 < span_ns:  # else it is of the span before
                used[key] = used.get(key, 0) + use.percent
        self._strangers = strangers
        # A process that has just begun is known to NVML before we know whose it is.
        complete = all(end_us - first_us > _NEWCOMER_US for first_us in strangers.values())
        end_ns = end_us * 1000 - wall_ahead_ns
        begun = []
        for key, held in self._held.items():
            held.use(used.get(key, 0) * span_ns // 100, end_ns=end_ns, span_ns=span_ns, complete=complete)
            words = held.news()
            if words:
                begun.append((held.share, words))
        return begun

    def paced(self) -> dict[Key, Paced]:
        return {key: held.paced() for key, held in self._held.items()}


class _Held:
    """One share: its files, and what is known of it."""

    def __init__(self, share: PacedShare, files: ShareFiles) -> None:
        self.share = share
        self.files = files
        self._words = files.pacing()
        self._demand = Demand()
        self._correction = Correction(factor_ppm=self._words.cost_factor_ppm)
        self._escape = Escape()
        self._used_ns = 0
        self._allowed_ns = 0
        self._allowed_of_ns = 0
        self._looked_ns = 0
        self._told_escape = False

    @property
    def _reserved(self) -> int:
        return 0 if self.share.policy is ComputePolicy.OFF else self.share.reserved_millipercent

    def repair(self) -> None:
        """Believes the file rather than itself about what stands there: only root can have changed it."""
        self._words = self.files.pacing()

    def look(self, now_ns: int) -> None:
        """Reads the ledger; one that was truncated says what it said before."""
        pace = self.files.pace()
        if pace is not None:
            self._demand.observe(pace, now_ns=now_ns)
        if self._looked_ns:
            lent = self._words.lent_millipercent if self._words.lent_until_ns > self._looked_ns else 0
            share = min(self._words.cores_millipercent + lent, lending.WHOLE) or lending.WHOLE
            self._allowed_ns += (now_ns - self._looked_ns) * share // lending.WHOLE
            self._allowed_of_ns += now_ns - self._looked_ns
        self._looked_ns = now_ns

    def seat(self) -> Seat:
        return Seat(
            reserved=self.share.reserved_millipercent,
            policy=self.share.policy,
            priority=self.share.priority,
            active=self._demand.active,
            wants=self._demand.wants(factor_ppm=self._words.cost_factor_ppm),
        )

    def lend(self, millipercent: int, now_ns: int) -> None:
        """Lends until shortly after the next look, or for good what is no loan but a limit."""
        until_ns = 0
        if millipercent:
            until_ns = now_ns + LOAN_NS if self._reserved else _FOREVER_NS
        self._store(
            Pacing(
                cores_millipercent=self._reserved,
                lent_millipercent=millipercent,
                lent_until_ns=until_ns,
                cost_factor_ppm=self._correction.factor_ppm,
                priority=_HIGH if self.share.priority is Priority.HIGH else 0,
            )
        )

    def use(self, used_ns: int, *, end_ns: int, span_ns: int, complete: bool) -> None:
        """Takes note of the GPU time that NVML told of a span; not `complete`: of some processes perhaps."""
        granted_ns = self._demand.granted_at(end_ns) - self._demand.granted_at(end_ns - span_ns)
        span_s, used_s = span_ns / _SECOND_NS, used_ns / _SECOND_NS
        self._used_ns += used_ns
        if self._allowed_of_ns:
            allowed_s = span_s * self._allowed_ns / self._allowed_of_ns
            self._escape.add(used_s=used_s, allowed_s=allowed_s, span_s=span_s)
        self._allowed_ns = self._allowed_of_ns = 0
        if complete:
            self._correction.add(
                used_s=used_s,
                granted_s=granted_ns / _SECOND_NS,
                span_s=span_s,
                trusted=not self._escape.words,
            )

    def news(self) -> str:
        """How it has begun to escape; told once until it ends."""
        words, told = self._escape.words, self._told_escape
        self._told_escape = bool(words)
        return "" if told else words

    def paced(self) -> Paced:
        return Paced(
            used_ns=self._used_ns,
            granted_ns=self._demand.pace.granted_ns,
            reserved_millipercent=self._words.cores_millipercent,
            lent_millipercent=self._words.lent_millipercent,
            factor_ppm=self._words.cost_factor_ppm,
            escape=self._escape.words,
        )

    def _store(self, words: Pacing) -> None:
        self.files.set_pacing(self._words, words)
        self._words = words
