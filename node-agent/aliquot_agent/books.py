# SPDX-License-Identifier: Apache-2.0
"""The books of a share compared: what the driver says of its processes against what they wrote. Pure.

The tenant can write anything into its ledger, so only the driver's figures decide whether a share is over its
quota; the ledger decides which of its processes is to blame:

1. a process that holds memory and is in no slot: nothing of it is in the books;
2. a process that holds more than its slot explains, contexts included;
3. if all are explained (a quota that was lowered, contexts that took more than was estimated): the process
   that holds the most, of several equal ones the youngest.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_agent import processes, region
from aliquot_agent.region import Slot
from aliquot_api.quantity import MIB

_NAMED: Final = 5
_CONTEXT_MARGIN: Final = 2
"""A context may take this many times its estimate before its process counts as unexplained."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process of a share on its GPU."""

    host_pid: int
    start_ticks: int
    held_bytes: int | None
    """By the driver; None where it does not say."""
    slot: Slot | None
    """As it stands after the driver was asked; None: it is in no slot."""
    before_bytes: int = 0
    """What its slot said before the driver was asked."""
    library: bool = True
    """Whether our library is mapped into it."""


@dataclass(frozen=True, slots=True)
class Books:
    """What the comparison of one look gave."""

    measured_bytes: int
    """All that the share's processes hold by the driver."""
    counted_bytes: int
    """What the ledger counts for the same processes."""
    bypassing: tuple[Holder, ...] = ()
    """Processes outside the shim: in no slot, or without our library."""
    unexplained: tuple[Holder, ...] = ()
    """Processes whose slot does not explain what they hold."""

    @property
    def wrong(self) -> bool:
        """Whether the ledger must not be believed, so that the driver's figure has to count."""
        return any(holder.held_bytes for holder in (*self.bypassing, *self.unexplained))


def compare(holders: Sequence[Holder], *, context_estimate_bytes: int, tolerance_bytes: int) -> Books:
    """Puts the driver's figures beside the ledger's."""
    measured = counted = 0
    bypassing, unexplained = [], []
    for holder in holders:
        by_ledger = region.counted_bytes(holder.slot, context_estimate_bytes) if holder.slot else 0
        counted += by_ledger or 0
        measured += (by_ledger or 0) if holder.held_bytes is None else holder.held_bytes
        if holder.slot is None or not holder.library:
            bypassing.append(holder)
        elif not _explains(holder, holder.slot, context_estimate_bytes, tolerance_bytes):
            unexplained.append(holder)
    return Books(measured, counted, tuple(bypassing), tuple(unexplained))


def _explains(holder: Holder, slot: Slot, context_estimate_bytes: int, tolerance_bytes: int) -> bool:
    """Whether what the process itself wrote is about what the driver says; overhead is the agent's word."""
    if holder.held_bytes is None:
        return True
    if slot.used_bytes > region.SANE_BYTES or slot.contexts > region.SANE_CONTEXTS:
        return False
    # Between the two readings of the slot the process may have given memory back.
    own_bytes = max(slot.used_bytes, min(holder.before_bytes, region.SANE_BYTES))
    contexts_bytes = _CONTEXT_MARGIN * slot.contexts * context_estimate_bytes
    return holder.held_bytes <= own_bytes + contexts_bytes + tolerance_bytes


def offenders(holders: Sequence[Holder], books: Books) -> tuple[Holder, ...]:
    """Who is to blame for a share above its quota; the module says in which order."""
    for blamed in (books.bypassing, books.unexplained):
        holding = tuple(holder for holder in blamed if holder.held_bytes)
        if holding:
            return holding
    known = [holder for holder in holders if holder.held_bytes]
    return (max(known, key=lambda each: (each.held_bytes or 0, each.start_ticks)),) if known else ()


def in_words(holders: Sequence[Holder]) -> str:
    """What is wrong with the first few of these processes."""
    return "; ".join(map(_in_words, holders[:_NAMED]))


def _in_words(holder: Holder) -> str:
    name = processes.command(holder.host_pid)
    held = f"process {holder.host_pid} ({name}) holds {(holder.held_bytes or 0) // MIB}Mi"
    if holder.slot is None:
        return f"{held} and is in no slot of the ledger"
    if not holder.library:
        return f"{held} and runs without the library"
    return f"{held} and has counted {holder.slot.used_bytes // MIB}Mi"
