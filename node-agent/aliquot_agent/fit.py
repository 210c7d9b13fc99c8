# SPDX-License-Identifier: Apache-2.0
"""Whether shares fit on a GPU together: the node's own check of what the scheduler decided. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from aliquot_agent import held
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.devices import CORES
from aliquot_api.quantity import MIB


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has for its shares together."""

    memory_bytes: int
    shares: int


def misfit(
    device: str, *, room: Room, wanted: Iterable[PreparedShare], others: Iterable[PreparedClaim]
) -> str | None:
    """Why `wanted` does not fit on `device` beside what `others` hold there; None when it does."""
    ours = [share for share in wanted if share.device == device]
    held = [share for claim in others for share in claim.shares if share.device == device]
    both = [*held, *ours]
    for name, taken, limit, unit in (
        ("memory", sum(share.taken_bytes for share in both) // MIB, room.memory_bytes // MIB, "Mi"),
        ("cores", sum(share.cores_percent for share in both), CORES, "%"),
        ("shares", sum(share.shares for share in both), room.shares, ""),
    ):
        if taken > limit:
            return (
                f"device {device} has {limit}{unit} of {name}; with this claim {taken}{unit} would be taken, "
                f"{len(held)} shares are prepared there already"
            )
    # The sums do not say it: settings may have changed since, and a whole one has no limit to hold.
    if len(both) > 1 and any(share.whole for share in both):
        return f"device {device} can be taken whole only alone; {len(held)} shares are prepared there already"
    return None


def first_misfit(
    rooms: Mapping[str, Room], *, wanted: Collection[PreparedShare], others: Collection[PreparedClaim]
) -> str | None:
    """Why `wanted` does not fit on the devices in `rooms`, or not beside the others; None when it does."""
    found = (misfit(device, room=room, wanted=wanted, others=others) for device, room in rooms.items())
    return next((problem for problem in found if problem is not None), None) or held.clash(wanted, others)


def missing_bytes(
    device: str, *, memory_bytes: int, wanted: Iterable[PreparedShare], others: Iterable[PreparedClaim]
) -> int:
    """How much memory `wanted` lacks on `device` beside what `others` hold there; 0 when it has room."""
    held = [*(share for claim in others for share in claim.shares), *wanted]
    taken = sum(share.taken_bytes for share in held if share.device == device)
    return max(0, taken - memory_bytes)


def held_whole(claims: Iterable[PreparedClaim]) -> dict[str, int]:
    """Memory that was handed out of each device that is held whole."""
    return {share.device: share.memory_bytes for claim in claims for share in claim.shares if share.whole}


def taken(claims: Iterable[PreparedClaim]) -> dict[str, int]:
    """Memory that prepared shares hold of each device, growth included."""
    sums: dict[str, int] = {}
    for share in (share for claim in claims for share in claim.shares):
        sums[share.device] = sums.get(share.device, 0) + share.taken_bytes
    return sums


def sharers(claims: Iterable[PreparedClaim], *, devices: Iterable[str], but: str) -> list[PreparedClaim]:
    """Claims other than `but` that hold a share of one of `devices`."""
    wanted = set(devices)
    found = []
    for claim in claims:  # each Prepare goes through all of them, so without a call for each
        for share in claim.shares:
            if share.device in wanted and claim.uid != but:
                found.append(claim)
                break
    return found
