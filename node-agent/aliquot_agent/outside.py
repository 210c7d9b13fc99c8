# SPDX-License-Identifier: Apache-2.0
"""Memory of each GPU that new claims cannot have although no claim consumed it.

Two kinds: what processes outside any share hold (another driver, a desktop, a leftover), and what live
resizes were granted. The first moves as it likes, and each change is a write that every scheduler sees: it
is taken in steps, up at the second look, down only after a quiet minute.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.nvml import Gpu
from aliquot_api.quantity import MIB

STEP_BYTES: Final = 64 * MIB
_LOOKS: Final = 2
"""A process that ends, or one that has just started in a container, is nobody's for a moment."""


@dataclass(slots=True)
class _Seen:
    withheld_bytes: int = 0
    higher: list[int] = field(default_factory=list)
    """What the last looks in a row showed, while that was more than is withheld."""
    most_bytes: int = 0
    """Most that was seen since `since_s`."""
    since_s: float = 0.0


class Outside:
    """What processes outside any share hold, by GPU UUID. Written by one thread."""

    def __init__(self, *, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._seen: dict[str, _Seen] = {}

    def observe(self, gpu_uuid: str, held_bytes: int, *, now_s: float) -> bool:
        """Takes one look; whether what is withheld changed."""
        seen = self._seen.setdefault(gpu_uuid, _Seen(since_s=now_s))
        steps_bytes = -(-held_bytes // STEP_BYTES) * STEP_BYTES
        if steps_bytes > seen.withheld_bytes:
            seen.higher.append(steps_bytes)
            seen.most_bytes, seen.since_s = steps_bytes, now_s
            if len(seen.higher) < _LOOKS:
                return False
            seen.withheld_bytes = min(seen.higher)
            seen.higher.clear()
            return True
        seen.higher.clear()
        if steps_bytes >= seen.withheld_bytes:
            seen.most_bytes, seen.since_s = steps_bytes, now_s
            return False
        if now_s - seen.since_s < self._quiet_s:
            if steps_bytes > seen.most_bytes or seen.most_bytes >= seen.withheld_bytes:
                seen.most_bytes = steps_bytes
            return False
        changed, seen.withheld_bytes = seen.most_bytes < seen.withheld_bytes, seen.most_bytes
        seen.most_bytes, seen.since_s = steps_bytes, now_s
        return changed

    def withheld_bytes(self, gpu_uuid: str) -> int:
        """What to count as held."""
        seen = self._seen.get(gpu_uuid)
        return seen.withheld_bytes if seen is not None else 0


def withheld(
    claims: Iterable[PreparedClaim],
    gpus: Mapping[str, Gpu],
    *,
    reserve_bytes: Callable[[Gpu], int],
    outside_bytes: Callable[[str], int],
) -> dict[str, int]:
    """What to take off each device's published memory; the reserve has room for what is outside."""
    found = {device: max(0, outside_bytes(gpu.uuid) - reserve_bytes(gpu)) for device, gpu in gpus.items()}
    for device, granted in grants(claims).items():
        found[device] = found.get(device, 0) + granted
    return found


def grants(claims: Iterable[PreparedClaim]) -> dict[str, int]:
    """What live resizes were granted beyond what their claims consumed, by device."""
    found: dict[str, int] = {}
    for share in (share for claim in claims for share in claim.shares if share.grant_bytes):
        found[share.device] = found.get(share.device, 0) + share.grant_bytes
    return found
