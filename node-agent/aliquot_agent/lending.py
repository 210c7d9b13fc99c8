# SPDX-License-Identifier: Apache-2.0
"""Who gets what of a GPU's time beside what is reserved. Pure; docs/compute.md says it in words.

Shares are in thousandths of a percent of the GPU's time. A share that launches keeps all that it has
reserved; what idle ones have reserved, and what nobody has, is lent to those who are held back: high priority
first, in proportion to their reservations, nobody above the whole GPU.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from aliquot_api.config import ComputePolicy, Priority

WHOLE: Final = 100_000
LEAST: Final = 1_000
"""What a share that reserves nothing gets, however full the GPU is: it must not stand still."""
UNRESERVED_WEIGHT: Final = 10_000
"""A share that reserves nothing borrows as if it had reserved this."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Seat:
    """A share of a GPU, as far as lending goes."""

    reserved: int
    policy: ComputePolicy = ComputePolicy.FAIR
    priority: Priority = Priority.LOW
    active: bool = False
    """It launches, or did a moment ago."""
    wants: int = 0
    """What it could use now, its own included."""

    @property
    def paced(self) -> bool:
        """Whether anything holds it."""
        return self.policy is not ComputePolicy.OFF

    @property
    def holds(self) -> int:
        """What of its reservation is for nobody else now."""
        return self.reserved if self.active or self.policy is not ComputePolicy.FAIR else 0

    @property
    def borrows(self) -> bool:
        """Whether it may be lent anything. Strict is about a reservation: without one it is as fair."""
        return self.policy is ComputePolicy.FAIR or (self.paced and self.reserved == 0)

    @property
    def weight(self) -> int:
        """In which proportion it borrows."""
        return self.reserved or UNRESERVED_WEIGHT


def contended(seats: Mapping[K, Seat]) -> bool:
    """Whether somebody who has reserved a part uses the GPU: only then are those without one held at all."""
    return any(seat.active and seat.reserved and seat.paced for seat in seats.values())


def lend(seats: Mapping[K, Seat]) -> dict[K, int]:
    """What each share of one GPU gets on top of its reservation; those that get nothing are left out.

    A share without a reservation that gets nothing is not held. Lent all of the GPU it is not either, but has
    little in flight: beside somebody who has reserved a part and may come back.
    """
    free = [key for key, seat in seats.items() if seat.paced and not seat.reserved]
    if not contended(seats):
        owned = any(seat.reserved and seat.paced for seat in seats.values())
        return dict.fromkeys(free, WHOLE) if owned else {}
    lent = dict.fromkeys(free, LEAST)
    spare = max(0, WHOLE - sum(seat.holds for seat in seats.values()))
    for priority in Priority:  # high first
        asking = [
            key
            for key, seat in seats.items()
            if seat.priority is priority
            and seat.borrows
            and seat.active
            and seat.wants > seat.reserved
            and (seat.reserved or key in lent)
        ]
        rooms = {key: min(seats[key].wants, WHOLE) - seats[key].reserved for key in asking}
        for key, part in divide(spare, asking, rooms, {key: seats[key].weight for key in asking}).items():
            lent[key] = max(part, lent.get(key, 0))
            spare -= part
    return {key: part for key, part in lent.items() if part > 0}


def divide(
    amount: int, asking: Sequence[K], rooms: Mapping[K, int], weights: Mapping[K, int]
) -> dict[K, int]:
    """`amount` in proportion to `weights`, to nobody more than its room; what one leaves the others get."""
    parts: dict[K, int] = {}
    left = list(asking)
    while left:
        total = sum(weights[key] for key in left)
        full = [key for key in left if rooms[key] * total <= amount * weights[key]]
        if not full:
            return parts | {key: amount * weights[key] // total for key in left}
        for key in full:
            parts[key] = rooms[key]
            amount -= rooms[key]
        left = [key for key in left if key not in parts]
    return parts
