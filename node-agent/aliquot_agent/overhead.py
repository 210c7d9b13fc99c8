# SPDX-License-Identifier: Apache-2.0
"""What a process takes beyond its allocations (contexts, code), from samples of NVML and its slot. Pure.

A sample counts when the slot stood still while NVML was asked; of a process that never stands still the
smallest of several counts. More is believed at once; less only when two samples in a row agree, since a
context that is being made, or code that is being loaded, shows up in the slot before it shows up in NVML.

Managed memory counts in full, wherever its pages are, so a sample is a range where there is any: what is
expected holds as far as it lies in there.
"""

from dataclasses import dataclass, field
from typing import Final

from aliquot_agent import region
from aliquot_agent.region import Slot

_SEVERAL: Final = 3


@dataclass(slots=True)
class Tracker:
    """The samples of one slot's owner."""

    _generation: int = -1
    _moving: list[int] = field(default_factory=list)
    _previous: tuple[int, int, int] | None = None
    """Contexts, code and overhead of the sample before."""

    def observe(
        self, *, before: Slot, after: Slot | None, nvml_bytes: int | None, context_estimate_bytes: int
    ) -> int | None:
        """The overhead to write into the slot now; None to leave it."""
        if after is None or nvml_bytes is None or before.generation != after.generation:
            return None
        if after.generation != self._generation:
            self._generation, self._moving, self._previous = after.generation, [], None
        counted = region.counted_bytes(after, context_estimate_bytes)
        if counted is None:
            return None
        sample = _sample(after, nvml_bytes, context_estimate_bytes)
        if before.changes == after.changes:
            self._moving.clear()
        else:
            self._moving.append(sample)
            if len(self._moving) < _SEVERAL:
                return None
            sample = min(self._moving)
            self._moving.clear()
        previous, self._previous = self._previous, (after.contexts, after.code_bytes, sample)
        if sample < counted - after.used_bytes:
            if previous is None or previous[:2] != (after.contexts, after.code_bytes):
                return None
            sample = max(sample, previous[2])
        settled = (
            after.overhead_bytes == sample
            and after.measured_contexts == after.contexts
            and after.measured_code_bytes == after.code_bytes
        )
        return None if settled else sample


def _sample(slot: Slot, nvml_bytes: int, context_estimate_bytes: int) -> int:
    """What the process takes beyond what it uses: for all that NVML tells, what was expected."""
    anywhere = min(slot.managed_bytes, slot.used_bytes)
    least = max(0, nvml_bytes - slot.used_bytes)
    most = max(0, nvml_bytes - slot.used_bytes + anywhere)
    return min(max(_expected(slot, context_estimate_bytes), least), most)


def _expected(slot: Slot, context_estimate_bytes: int) -> int:
    """As measured before, with estimates for what came or went since."""
    if slot.overhead_bytes == region.OVERHEAD_UNKNOWN:
        return slot.contexts * context_estimate_bytes + slot.code_bytes
    contexts = slot.contexts - slot.measured_contexts
    return (
        slot.overhead_bytes + contexts * context_estimate_bytes + slot.code_bytes - slot.measured_code_bytes
    )
