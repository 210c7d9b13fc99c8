# SPDX-License-Identifier: Apache-2.0
"""The shares of one GPU, held: reads their ledgers, decides, stores the words of pacing in their quotas."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from aliquot_agent import lending, region
from aliquot_agent.attribution import Key
from aliquot_agent.correction import Correction, Escape
from aliquot_agent.demand import Demand
from aliquot_agent.lending import Seat
from aliquot_agent.nvml import Use
from aliquot_agent.pacing import Paced, PacedShare
from aliquot_agent.sharedir import ShareFiles
from aliquot_api.config import ComputePolicy, Priority

_SECOND_NS: Final = 1_000_000_000
LOAN_NS: Final = 150_000_000
"""A loan that is not renewed ends after this."""
_FOREVER_NS: Final = 2**63 - 1
"""A share without a reservation is held until the agent says otherwise: dead, it must not free it."""
_LONGEST_SPAN_NS: Final = _SECOND_NS
"""NVML keeps samples of a second."""
_NEWCOMER_US: Final = 3_000_000
_THOROUGH: Final = 5
"""Of so many updates one looks at the words of all shares."""
_HIGH: Final = 1
"""`quota.priority`."""


class SharedGpu:
    """The shares of one GPU. For one thread."""

    def __init__(self) -> None:
        self.hot = False
        """Whether somebody could come back to what is lent, or wants more than it has."""
        self.in_use = False
        """Whether any of its shares has a process there."""
        self._held: dict[Key, _Held] = {}
        self._updates = 0
        self._seats: dict[Key, Seat] = {}
        self._lent: dict[Key, int] = {}
        self._told_us = 0
        self._strangers: dict[int, int] = {}
        """When NVML first told of a process that is nobody's, by host pid."""

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Closes the files of all shares."""
        for held in self._held.values():
            held.files.close()
        self._held.clear()

    def update(self, shares: Mapping[Key, PacedShare]) -> None:
        """Takes note of which shares are there, and puts their words right.

        Where nobody uses the GPU and nothing new is decided about a share that waits for a program, or for
        some seconds: only root on the host can have changed its words.
        """
        self._updates += 1
        thorough = self.in_use or self._updates % _THOROUGH == 0
        for key, held in list(self._held.items()):
            share = shares.get(key)
            # Files that were made anew are of a claim that was prepared anew, unless root removed them.
            if share is None or ((thorough or held.share is not share) and held.files.removed()):
                self._held.pop(key).files.close()
        for key, share in shares.items():
            known = self._held.get(key)
            if known is None:
                # It may be being prepared; the watcher logs the rest.
                with suppress(OSError, region.DamagedRegion):
                    known = self._held[key] = _Held(ShareFiles(path=share.path))
                    known.update(share)
            elif thorough or known.share is not share:
                known.update(share)

    def look(self, now_ns: int) -> None:
        """Reads the ledgers and lends."""
        seats = {key: held.look(now_ns) for key, held in self._held.items()}
        if seats != self._seats:
            self._seats, self._lent = seats, lending.lend(seats)
            contended = lending.contended(seats)
            self.hot = any(
                (key in self._lent and (seat.active or contended))
                or (seat.active and seat.borrows and seat.wants > seat.reserved)
                for key, seat in seats.items()
            )
        for key, held in self._held.items():
            held.lend(self._lent.get(key, 0), now_ns)

    def since_us(self, wall_us: int) -> int:
        """The end of what NVML has told about; from the start again when the clock was set back."""
        if self._told_us > wall_us:
            self._told_us = 0
        return self._told_us

    def told(
        self, uses: Sequence[Use], users: Mapping[int, Key], *, now_ns: int, wall_ahead_ns: int
    ) -> list[tuple[PacedShare, str]]:
        """Compares what NVML says with the ledgers; who has begun to escape, with words."""
        end_us = max(use.stamp_us for use in uses)
        span_ns = min((end_us - self._told_us) * 1000, _LONGEST_SPAN_NS) if self._told_us else 0
        self._told_us = end_us
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
            used_ns = used.get(key, 0) * span_ns // 100
            words = held.use(used_ns, end_ns=end_ns, span_ns=span_ns, now_ns=now_ns, complete=complete)
            if words:
                begun.append((held.share, words))
        return begun

    def paced(self) -> dict[Key, Paced]:
        """What is known of each share."""
        return {key: held.paced() for key, held in self._held.items()}


class _Held:
    """One share: its files, and what is known of it. `update` first."""

    share: PacedShare

    def __init__(self, files: ShareFiles) -> None:
        self.files = files
        self._words = files.pacing()
        self._demand = Demand()
        self._correction = Correction(factor_ppm=self._words.cost_factor_ppm)
        self._escape = Escape()
        self._told_escape = False
        self._used_ns = 0
        self._allowed_ns = 0
        self._allowed_of_ns = 0
        self._accounted_ns = 0
        self._seen = b""
        self._seat = Seat(0)
        self._paced: Paced | None = None

    def update(self, share: PacedShare) -> None:
        """Takes note of what is decided about the share now.

        Believes the file rather than itself about what stands there: root on the host can have changed it.
        """
        self.share = share
        self._seen = b""
        self._words = self.files.pacing()
        self._store(  # which forgets what was known of them
            cores_millipercent=self._reserved,
            cost_factor_ppm=self._correction.factor_ppm,
            priority=_HIGH if share.priority is Priority.HIGH else 0,
        )

    def look(self, now_ns: int) -> Seat:
        """Reads the ledger; one that was truncated says what it said before."""
        seen = self.files.pace()
        if seen == self._seen and not self._seat.active:
            self._demand.still(now_ns=now_ns)  # as most are at most looks, and there may be 128
            return self._seat
        self._paced = None
        if len(seen) == region.PACE_SIZE:
            self._seen = seen
            self._demand.observe(region.decode_pace(seen), now_ns=now_ns)
        self._seat = Seat(
            reserved=self.share.reserved_millipercent,
            policy=self.share.policy,
            priority=self.share.priority,
            active=self._demand.active,
            wants=self._demand.wants(factor_ppm=self._words.cost_factor_ppm),
        )
        return self._seat

    def lend(self, millipercent: int, now_ns: int) -> None:
        """Lends until shortly after the next look, or for good what is no loan but a limit."""
        words = self._words
        until_ns = 0
        if millipercent:
            until_ns = now_ns + LOAN_NS if words.cores_millipercent else _FOREVER_NS
        if millipercent != words.lent_millipercent:
            self._account(now_ns)
            self._store(lent_millipercent=millipercent, lent_until_ns=until_ns)
        elif until_ns != words.lent_until_ns:
            self._store(lent_until_ns=until_ns)

    def use(self, used_ns: int, *, end_ns: int, span_ns: int, now_ns: int, complete: bool) -> str:
        """Takes note of the GPU time that NVML told of a span; not `complete`: of some processes perhaps.

        How the share has begun to escape; told once until that ends.
        """
        self._paced = None
        granted_ns = self._demand.granted_at(end_ns) - self._demand.granted_at(end_ns - span_ns)
        span_s, used_s = span_ns / _SECOND_NS, used_ns / _SECOND_NS
        self._used_ns += used_ns
        self._account(now_ns)
        if self._allowed_of_ns:
            allowed_s = span_s * self._allowed_ns / self._allowed_of_ns
            self._escape.add(used_s=used_s, allowed_s=allowed_s, span_s=span_s)
        self._allowed_ns = self._allowed_of_ns = 0
        words, told = self._escape.words, self._told_escape
        self._told_escape = bool(words)
        if complete:
            granted_s = granted_ns / _SECOND_NS
            self._correction.add(used_s=used_s, granted_s=granted_s, span_s=span_s, trusted=not words)
            self._store(cost_factor_ppm=self._correction.factor_ppm)
        return "" if told else words

    def paced(self) -> Paced:
        """What is known of the share; the same object while that is the same."""
        if self._paced is None:
            self._paced = self._paced_now()
        return self._paced

    def _paced_now(self) -> Paced:
        return Paced(
            used_ns=self._used_ns,
            granted_ns=self._demand.pace.granted_ns,
            reserved_millipercent=self._words.cores_millipercent,
            lent_millipercent=self._words.lent_millipercent,
            factor_ppm=self._words.cost_factor_ppm,
            escape=self._escape.words,
        )

    @property
    def _reserved(self) -> int:
        return 0 if self.share.policy is ComputePolicy.OFF else self.share.reserved_millipercent

    def _account(self, now_ns: int) -> None:
        """Adds what the share was allowed since the last time; one that is not held is allowed all."""
        if self._accounted_ns:
            share = self._words.cores_millipercent + self._words.lent_millipercent
            passed_ns = now_ns - self._accounted_ns
            self._allowed_ns += passed_ns * (min(share, lending.WHOLE) or lending.WHOLE) // lending.WHOLE
            self._allowed_of_ns += passed_ns
        self._accounted_ns = now_ns

    def _store(self, **words: int) -> None:
        self._paced = None
        after = self._words._replace(**words)
        self.files.set_pacing(self._words, after)
        self._words = after
