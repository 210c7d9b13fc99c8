# SPDX-License-Identifier: Apache-2.0
"""Conditions of a share with the time of their last change, kept for long enough to be seen.

A ledger that was damaged is healed within a second; its condition must outlast the interval of reports.
"""

import datetime
from dataclasses import dataclass
from typing import Final

WITHIN_QUOTA: Final = "WithinQuota"
SHIM_MISSING: Final = "ShimMissing"
BOOKS_DIFFER: Final = "BooksDiffer"
PACING_ESCAPED: Final = "PacingEscaped"
LEDGER_DAMAGED: Final = "LedgerDamaged"
RESIZED: Final = "Resized"

_SHOWN_S: Final = 60.0
"""How long a fault is shown after it was last seen."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A condition of `status.devices[].conditions`."""

    kind: str
    status: bool
    reason: str
    message: str
    since: str
    """RFC 3339: when `status` became what it is."""


@dataclass(slots=True)
class _Fault:
    mark: Mark
    seen_s: float


class Marks:
    """The faults of one share. Not for several threads at once."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._ended: dict[str, str] = {}

    def fault(self, kind: str, reason: str, message: str, *, now_s: float) -> bool:
        """Notes that a fault is there now; whether it is a new one."""
        before = self._faults.get(kind)
        since = before.mark.since if before else now_text()
        self._faults[kind] = _Fault(Mark(kind, True, reason, message, since), now_s)
        return before is None

    def faults(self, *, now_s: float) -> tuple[Mark, ...]:
        """The faults of now and of the minute before."""
        for kind, fault in list(self._faults.items()):
            if now_s - fault.seen_s > _SHOWN_S:
                del self._faults[kind]
                self._ended[kind] = now_text()
        return tuple(fault.mark for fault in self._faults.values())

    def ended(self, kind: str) -> str:
        """When a fault went away; empty when it never was there."""
        return self._ended.get(kind, "")


def now_text() -> str:
    """Now, as RFC 3339."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
