# SPDX-License-Identifier: Apache-2.0
"""What a share's ledger tells about its need of GPU time: whether it launches, is held, how much it takes.

Pure. The ledger is the tenant's: a lie in it gets idle time at most, and keeps what is reserved for the liar.
"""

from bisect import bisect_right
from collections import deque
from typing import Final

from aliquot_agent import lending, region
from aliquot_agent.region import Pace

_MS: Final = 1_000_000
IDLE_NS: Final = 500 * _MS
"""Without a launch for so long a share is idle."""
_WAITED_NS: Final = 300 * _MS
"""So long after it was held a share counts as wanting all it can get."""
_RATE_NS: Final = 500 * _MS
_KEPT_NS: Final = 4_000 * _MS
"""NVML tells of time that has passed some seconds ago."""
_STEP_NS: Final = 100 * _MS
_HEADROOM: Final = 1.25
_HEADROOM_MILLIPERCENT: Final = 2_000


class Demand:
    """One share's need. `observe`, then ask."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._now_ns = 0
        self._times_ns: deque[int] = deque()
        self._granted_ns: deque[int] = deque()

    def observe(self, pace: Pace, *, now_ns: int) -> None:
        """Notes what the ledger says now."""
        self._pace, self._now_ns = pace, now_ns
        if not self._times_ns or now_ns - self._times_ns[-1] >= _STEP_NS:
            self._times_ns.append(now_ns)
            self._granted_ns.append(pace.granted_ns)
            while now_ns - self._times_ns[0] > _KEPT_NS:
                self._times_ns.popleft()
                self._granted_ns.popleft()

    @property
    def pace(self) -> Pace:
        """The ledger's words, as they were seen last."""
        return self._pace

    @property
    def active(self) -> bool:
        """Whether the share launches, is held, or has taken time in advance."""
        return max(self._pace.last_launch_ns + IDLE_NS, self._pace.waiting_until_ns, self._pace.tat_ns) > (
            self._now_ns
        )

    def wants(self, *, factor_ppm: int) -> int:
        """What the share could use, in thousandths of a percent: all of it while it is held."""
        if not self.active:
            return 0
        if self._pace.waiting_until_ns + _WAITED_NS > self._now_ns:
            return lending.WHOLE
        since_ns = self._now_ns - _RATE_NS
        taken_ns = self._pace.granted_ns - self.granted_at(since_ns)
        span_ns = self._now_ns - max(since_ns, self._times_ns[0])
        if span_ns <= 0:
            return 0
        rate = taken_ns * lending.WHOLE * factor_ppm / region.COST_FACTOR_ONE / span_ns
        return int(min(max(rate, 0) * _HEADROOM + _HEADROOM_MILLIPERCENT, lending.WHOLE))

    def granted_at(self, time_ns: int) -> int:
        """GPU time that had been granted at a time of the last seconds."""
        times, granted = self._times_ns, self._granted_ns
        after = bisect_right(times, time_ns)
        if after == 0:
            return granted[0] if granted else 0
        before_ns, base = times[after - 1], granted[after - 1]
        if after < len(times):
            next_ns, top = times[after], granted[after]
        else:
            next_ns, top = self._now_ns, self._pace.granted_ns
        if next_ns <= before_ns:
            return base
        return base + (top - base) * (min(time_ns, next_ns) - before_ns) // (next_ns - before_ns)
