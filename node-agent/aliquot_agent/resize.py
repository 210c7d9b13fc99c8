# SPDX-License-Identifier: Apache-2.0
"""Live resize: what a share's limit shall be, from the pods' annotations and the node's policy. Pure.

A limit up to what the claim consumed is the share's own: it changes at once. More is growth, which must be
taken off the published capacity first (`grower`).
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aliquot_agent import fit
from aliquot_agent.checkpoint import Growth, PreparedClaim, PreparedShare
from aliquot_agent.nodepolicy import ResizePolicy
from aliquot_agent.pods import Pod
from aliquot_api import annotations, quantity
from aliquot_api.config import OverQuota
from aliquot_api.errors import InvalidInput
from aliquot_api.names import ANNOTATION_MEMORY_LIMIT, CAPACITY_MEMORY, DRIVER
from aliquot_api.quantity import MIB

FIELD: Final = f"metadata.annotations[{ANNOTATION_MEMORY_LIMIT}]"


class Reason(enum.StrEnum):
    """Reasons of condition `Resized`."""

    APPLIED = "Applied"
    IN_USE = "InUse"
    """More is in use than is wished: the limit follows the use down."""
    PENDING = "Pending"
    """Growth is being taken off the published capacity."""
    NOT_UNDERSTOOD = "NotUnderstood"
    CONFLICT = "Conflict"
    """Pods or containers that share the share wish different limits."""
    WHOLE_GPU = "WholeGPU"
    NOT_ALLOWED = "NotAllowed"
    NO_ROOM = "NoRoom"
    WITHDRAWN = "Withdrawn"
    """Growth was taken back: the scheduler had given the memory to another claim."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A wish that is not met."""

    reason: Reason
    message: str


def wish(claim: PreparedClaim, share: PreparedShare, pods: Sequence[Pod]) -> int | Refusal | None:
    """The limit that the pods of a share wish, in bytes; None where no pod says one."""
    wished: dict[int, str] = {}
    for pod in pods:
        if pod.memory_limit is None:
            continue
        try:
            limits = annotations.memory_limits(
                pod.memory_limit, field=FIELD, containers=tuple(pod.containers)
            )
        except InvalidInput as error:
            return Refusal(Reason.NOT_UNDERSTOOD, f"pod {pod.name}: {error}")
        for container in pod.containers_of(claim, share):
            if container in limits:
                wished.setdefault(limits[container], f"container {container} of pod {pod.name}")
    if len(wished) > 1:
        each = ", ".join(f"{who} wishes {bytes_ // MIB}Mi" for bytes_, who in wished.items())
        return Refusal(Reason.CONFLICT, f"{each}, and they share this memory: let them wish the same")
    if not wished:
        return None
    if share.whole:
        return Refusal(Reason.WHOLE_GPU, "the claim has a whole GPU, which has no limit to change")
    return next(iter(wished))


def refusal(
    share: PreparedShare, wished_bytes: int, *, policy: ResizePolicy, over_quota: OverQuota
) -> Refusal | None:
    """Why the node does not allow a limit; None where it does."""
    if policy.most_bytes is not None and wished_bytes > max(policy.most_bytes, share.memory_bytes):
        most = quantity.format_mebibytes(policy.most_bytes)
        text = f"this node lets a share be resized to {most} at most (node configuration, resize.most)"
        return Refusal(Reason.NOT_ALLOWED, text)
    if wished_bytes <= share.memory_bytes:
        return None
    own = quantity.format_mebibytes(share.memory_bytes)
    if not policy.grow:
        text = f"this node lets no share grow beyond what its claim consumed, {own} (resize.grow)"
        return Refusal(Reason.NOT_ALLOWED, text)
    if over_quota is OverQuota.WARN:
        # Growth must end when the scheduler gave the memory away all the same.
        text = f"growth beyond {own} can only be given where it can be taken back: overQuota kill or evict"
        return Refusal(Reason.NOT_ALLOWED, text)
    return None


def settled(share: PreparedShare, wished_bytes: int | None, *, in_force_bytes: int) -> PreparedShare:
    """The share with its limit moved as far as it needs no growth; surplus growth given up once it is free.

    `in_force_bytes` is the quota as it stands: above the limit while use has to fall.
    """
    wanted = share.memory_bytes if wished_bytes is None else wished_bytes
    if share.growth is Growth.LEAVING:
        if in_force_bytes > share.memory_bytes:
            return _limited(share, min(wanted, share.memory_bytes))
        share = replace(share, growth=Growth.NONE, grant_bytes=0)
    if share.growth is Growth.ASKED:
        if wanted > max(share.limit, share.memory_bytes):
            return share  # it is waited for
        share = dropped(share)
    limit = min(wanted, share.memory_bytes + share.grant_bytes)
    grant = max(0, max(limit, in_force_bytes) - share.memory_bytes)
    if grant < share.grant_bytes:
        share = replace(share, grant_bytes=grant, growth=Growth.HELD if grant else Growth.NONE)
    return _limited(share, limit)


def asked(share: PreparedShare, wished_bytes: int) -> PreparedShare:
    """The share with its growth recorded, not yet in its quota."""
    grant_bytes = wished_bytes - share.memory_bytes
    return replace(share, growth=Growth.ASKED, grant_bytes=grant_bytes)


def granted(share: PreparedShare) -> PreparedShare:
    """The share with the growth that was recorded in its limit."""
    return replace(share, growth=Growth.HELD, limit_bytes=share.taken_bytes)


def dropped(share: PreparedShare) -> PreparedShare:
    """The share without growth that was recorded and is not in its quota yet."""
    kept = max(0, share.limit - share.memory_bytes)
    return replace(share, grant_bytes=kept, growth=Growth.HELD if kept else Growth.NONE)


def withdrawn(share: PreparedShare) -> PreparedShare:
    """The share with its growth taken back: at once where nothing of it is in the quota."""
    if share.growth is Growth.ASKED and share.limit <= share.memory_bytes:
        return dropped(share)
    if share.growth in (Growth.ASKED, Growth.HELD):
        return _limited(replace(share, growth=Growth.LEAVING), min(share.limit, share.memory_bytes))
    return share


def _limited(share: PreparedShare, limit_bytes: int) -> PreparedShare:
    return replace(share, limit_bytes=None if limit_bytes == share.memory_bytes else limit_bytes)


def allocated_bytes(
    listed: Iterable[Mapping[str, Any]], prepared: Iterable[PreparedClaim], *, pool: str, device: str
) -> int:
    """Memory of a device that claims have consumed: those on the server and those that still are here."""
    seen: dict[str, int] = {}
    for claim in listed:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        taken = sum(
            quantity.parse(str(_consumed(each)), field=f"consumedCapacity[{CAPACITY_MEMORY}]")
            for each in results
            if (each.get("driver"), each.get("pool"), each.get("device")) == (DRIVER, pool, device)
        )
        if taken:
            seen[str(claim["metadata"]["uid"])] = taken
    for entry in prepared:
        taken = sum(share.memory_bytes for share in entry.shares if share.device == device)
        seen[entry.uid] = max(taken, seen.get(entry.uid, 0))
    return sum(seen.values())


def _consumed(result: Mapping[str, Any]) -> object:
    return (result.get("consumedCapacity") or {}).get(CAPACITY_MEMORY, "0")


def growth_in_the_way(
    nominal_bytes: Mapping[str, int], *, wanted: Collection[PreparedShare], others: Collection[PreparedClaim]
) -> list[tuple[PreparedClaim, PreparedShare]]:
    """Whose growth beyond its claim must end for `wanted`: what the scheduler allocated comes first."""
    found = []
    for device, memory_bytes in nominal_bytes.items():
        missing_bytes = fit.missing_bytes(device, memory_bytes=memory_bytes, wanted=wanted, others=others)
        if missing_bytes:
            here = [(claim, share) for claim in others for share in claim.shares]
            grown = [each for each in here if each[1].device == device and each[1].grant_bytes]
            found += in_the_way(grown, missing_bytes)
    return found


def in_the_way(
    grown: Sequence[tuple[PreparedClaim, PreparedShare]], missing_bytes: int
) -> list[tuple[PreparedClaim, PreparedShare]]:
    """Whose growth must end so that `missing_bytes` become free: what is leaving, then the largest grants."""
    chosen = []
    free = 0
    order = sorted(grown, key=lambda each: (each[1].growth is not Growth.LEAVING, -each[1].grant_bytes))
    for claim, share in order:
        if free < missing_bytes:
            chosen.append((claim, share))
            free += share.grant_bytes
    return chosen
