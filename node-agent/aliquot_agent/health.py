# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU is well: what makes it sick, and what has to be seen before it counts as well again. Pure.

A GPU is sick after an XID that says so, after an uncorrected ECC error, and while it has fallen off the bus.
Application faults (node policy, `ignored_xids`) never count. Silence is no proof of recovery: it takes
evidence of a reset (the driver asks for no recovery action any more, or, where it cannot say, an error
counter began anew or the card is back on the bus; a reboot is one too), and then calm for a while.
"""

import enum
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from aliquot_agent.devices import Taint
from aliquot_api.names import DRIVER

TAINT_KEY: Final = f"{DRIVER}/unhealthy"


class Fault(enum.StrEnum):
    """What is wrong; also a metric's label."""

    XID = "xid"
    ECC = "ecc"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a GPU. None where the driver does not say."""

    lost: bool = False
    uncorrected: int | None = None
    """Uncorrected ECC errors since the driver was loaded or the card reset."""
    action_needed: bool | None = None
    """Whether the driver asks for a reset or more."""
    xids: tuple[int, ...] = ()
    """New since the last look."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How a GPU is. The default is a well one that was never looked at."""

    fault: Fault | None = None
    detail: str = ""
    """For people, and short enough for a taint's value: `xid-79`."""
    since: str = ""
    """RFC 3339: when it fell sick."""
    uncorrected: int | None = None
    """The counter as seen last."""
    fault_uncorrected: int | None = None
    """The counter when it fell sick."""
    reset_seen: bool = False
    calm_since_s: float | None = None
    """Monotonic: since when there is evidence of recovery, and no new fault."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return self.fault is None


def judge(
    before: Condition,
    sample: Sample,
    *,
    ignored_xids: AbstractSet[int],
    calm_s: float,
    now_s: float,
    now: str,
) -> Condition:
    """The condition after one more look; `now_s` is monotonic, `now` RFC 3339."""
    fault = _new_fault(before, sample, ignored_xids)
    seen = replace(
        before, uncorrected=before.uncorrected if sample.uncorrected is None else sample.uncorrected
    )
    if fault is not None:
        kind, detail = fault
        return replace(
            seen,
            fault=kind,
            detail=detail,
            since=before.since or now,
            fault_uncorrected=seen.uncorrected,
            reset_seen=False,
            calm_since_s=None,
        )
    if before.fault is None:
        return seen
    if sample.lost:
        return replace(seen, calm_since_s=None)
    reset_seen = before.reset_seen or _reset(before, sample)
    evidence = not sample.action_needed if sample.action_needed is not None else reset_seen
    if not evidence:
        return replace(seen, reset_seen=reset_seen, calm_since_s=None)
    calm_since_s = now_s if before.calm_since_s is None else before.calm_since_s
    if now_s - calm_since_s >= calm_s:
        return Condition(uncorrected=seen.uncorrected)
    return replace(seen, reset_seen=reset_seen, calm_since_s=calm_since_s)


def taint(condition: Condition, *, effect: str) -> Taint | None:
    """The taint of a sick GPU."""
    if condition.healthy:
        return None
    return {"key": TAINT_KEY, "value": condition.detail, "effect": effect, "timeAdded": condition.since}


def explain(condition: Condition) -> str:
    """For people: what is wrong, and what ends it."""
    if condition.healthy:
        return ""
    what = {
        Fault.XID: f"the driver reported {condition.detail.replace('-', ' ').upper()}",
        Fault.ECC: "uncorrected ECC errors",
        Fault.LOST: "it has fallen off the bus",
    }[condition.fault or Fault.LOST]
    return f"{what}, since {condition.since}; reset the GPU or reboot the node"


def _new_fault(before: Condition, sample: Sample, ignored_xids: AbstractSet[int]) -> tuple[Fault, str] | None:
    """What is wrong that was not before."""
    if sample.lost:
        return None if before.fault is Fault.LOST else (Fault.LOST, "lost")
    fatal = [code for code in sample.xids if code not in ignored_xids]
    if fatal:
        return Fault.XID, f"xid-{fatal[-1]}"
    more = (
        before.uncorrected is not None
        and sample.uncorrected is not None
        and sample.uncorrected > before.uncorrected
    )
    return (Fault.ECC, "ecc") if more else None


def _reset(before: Condition, sample: Sample) -> bool:
    """Whether the card began anew since it fell sick."""
    if before.fault is Fault.LOST:  # and it answers again
        return True
    counted, now = before.fault_uncorrected, sample.uncorrected
    return counted is not None and now is not None and now < counted
