# SPDX-License-Identifier: Apache-2.0
"""What the driver's figures say about a share's own: the factor that corrects its costs, and who escapes.

Pure. A shim prices a launch by the time between two events. Where shares compete, that counts the others'
slices too; where streams overlap, the same instant twice. NVML tells, a second late and in whole percent,
what a process really had, so their ratio, smoothed, is the factor that the shim multiplies its prices with.
"""

import math
from typing import Final

from aliquot_agent import region

LEAST_PPM: Final = region.COST_FACTOR_ONE // 10
MOST_PPM: Final = region.COST_FACTOR_ONE * 10
_SMOOTH_S: Final = 3.0
_LEAST_PART: Final = 0.02
"""Of the time: what is less than two of NVML's steps tells nothing about a ratio."""
_SEED_S: Final = 0.1
"""How much GPU time the factor of the past weighs when there is a new figure."""

_ESCAPE_S: Final = 15.0
_ESCAPE_AFTER_S: Final = 5.0
_ESCAPE_RATIO: Final = 1.5
_ESCAPE_PART: Final = 0.05


class Correction:
    """The cost factor of one share, in ppm."""

    def __init__(self, *, factor_ppm: int) -> None:
        self.factor_ppm = min(max(factor_ppm, LEAST_PPM), MOST_PPM)
        self._granted_s = _SEED_S
        self._used_s = _SEED_S * self.factor_ppm / region.COST_FACTOR_ONE

    def add(self, *, used_s: float, granted_s: float, span_s: float, trusted: bool = True) -> None:
        """Notes what was used and granted in some time; without trust the factor makes nothing cheaper."""
        if granted_s >= _LEAST_PART * span_s:
            decay = math.exp(-span_s / _SMOOTH_S)
            self._granted_s = self._granted_s * decay + granted_s
            self._used_s = self._used_s * decay + used_s
            ratio = self._used_s / self._granted_s * region.COST_FACTOR_ONE
            self.factor_ppm = int(min(max(ratio, LEAST_PPM), MOST_PPM))
        if not trusted:
            self.factor_ppm = max(self.factor_ppm, region.COST_FACTOR_ONE)


class Escape:
    """Tells whether a share uses much more GPU time than it may have, whatever its ledger says."""

    def __init__(self) -> None:
        self._used_s = self._allowed_s = self._span_s = 0.0

    def add(self, *, used_s: float, allowed_s: float, span_s: float) -> None:
        """Notes what was used and what the share allowed in a span of time."""
        decay = math.exp(-span_s / _ESCAPE_S)
        self._used_s = self._used_s * decay + used_s
        self._allowed_s = self._allowed_s * decay + allowed_s
        self._span_s = self._span_s * decay + span_s

    @property
    def words(self) -> str:
        """What is wrong; empty when nothing is."""
        if self._span_s < _ESCAPE_AFTER_S:
            return ""
        if self._used_s <= self._allowed_s * _ESCAPE_RATIO + self._span_s * _ESCAPE_PART:
            return ""
        used, allowed = (100 * part / self._span_s for part in (self._used_s, self._allowed_s))
        return f"its processes use {used:.0f} % of the GPU's time, and may use {allowed:.0f} %"
