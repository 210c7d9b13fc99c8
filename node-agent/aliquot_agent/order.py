# SPDX-License-Identifier: Apache-2.0
"""The order in which a node's GPUs are published: the scheduler takes the first that fits.

That is all a driver can do about packing and spreading on the stock scheduler (kubernetes-dra, 3.2): a burst
of pods sees one order, and each change wakes every waiting pod. So the order changes rarely, and only for a
difference that counts.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aliquot_agent.nodepolicy import Order

_MARGIN: Final = 0.1
"""Of a GPU's memory: smaller differences change nothing."""
_PAUSE_S: Final = 30.0


def arrange(
    found: Sequence[str], *, before: Sequence[str], taken: Mapping[str, float], order: Order
) -> tuple[str, ...]:
    """`found`, devices in NVML's order, as they should be published; `taken` is 0 to 1 of each one's memory.

    `before` is the order that was published last: it stays unless two neighbours in it stand clearly wrong.
    """
    if order is Order.AS_FOUND:
        return tuple(found)
    sign = -1 if order is Order.PACKED else 1
    known = [device for device in before if device in found]
    kept = (*known, *(device for device in found if device not in known))
    weights = [sign * taken.get(device, 0.0) for device in kept]
    if all(first <= second + _MARGIN for first, second in itertools.pairwise(weights)):
        return kept
    return tuple(sorted(kept, key=lambda device: sign * taken.get(device, 0.0)))


class Arranger:
    """Remembers the order that was published, and changes it twice a minute at most."""

    def __init__(self, *, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._order: tuple[str, ...] = ()
        self._by: Order | None = None
        self._changed_s = float("-inf")

    def arrange(self, found: Sequence[str], *, taken: Mapping[str, float], order: Order) -> tuple[str, ...]:
        """The order to publish now."""
        wanted = arrange(found, before=self._order, taken=taken, order=order)
        now_s = self._monotonic_s()
        moved = [device for device in wanted if device in self._order] != [
            device for device in self._order if device in wanted
        ]
        if moved and order is self._by and now_s - self._changed_s < _PAUSE_S:
            kept = [device for device in self._order if device in wanted]
            return (*kept, *(device for device in wanted if device not in kept))
        if moved:
            self._changed_s = now_s
        self._order, self._by = wanted, order
        return wanted
