# SPDX-License-Identifier: Apache-2.0
"""How long the scheduler may look for a place on one node before it says that there is none.

Its allocator tries devices depth first, takes the first complete solution, and has no early test whether the
last request can be met at all. So the worst no-fit costs as many trials as there are ways to place all
requests, each some microseconds. The figures are in docs/semantics.md.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Final

from aliquot_api.errors import InvalidInput
from aliquot_webhook.claims import Constraint, PlannedRequest
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import GpuRequest

USUAL_GPUS: Final = 8
"""GPUs per node that limits are made for; larger nodes count as they are."""


def check_search(
    claims: Sequence[tuple[Sequence[PlannedRequest], Sequence[Constraint]]], known: Inventory, policy: Policy
) -> None:
    """Raise InvalidInput if these claims of one pod could hold up the scheduler."""
    gpus = max(USUAL_GPUS, known.most_gpus)
    requests = [each for claim, _ in claims for each in claim]
    # Alternatives for live GPUs exclude each other, so a GPU is tried for one of them; words may overlap.
    overlaps = 1 if known.gpus else math.prod(len(each.alternatives) for each in requests)
    if ways(claims, gpus) * overlaps > policy.max_search:
        raise InvalidInput(
            field="spec.containers",
            value=f"{len(requests)} requests for {sum(each.request.count for each in requests)} GPUs",
            fix="where they do not fit, the scheduler would try too long to find that out; ask for the same"
            " in each container, for fewer GPUs, or in several pods",
        )


def ways(claims: Sequence[tuple[Sequence[PlannedRequest], Sequence[Constraint]]], gpus: int) -> int:
    """Trials in the worst case on a node of `gpus`."""
    total, free = 1, gpus
    for index, (requests, constraints) in enumerate(claims):
        is_single = all(each.request.count == 1 for each in requests)
        if is_single and _is_uniform(requests, constraints, claims):
            total *= math.perm(gpus, min(len(requests), gpus))
            continue
        is_last = index == len(claims) - 1
        for each in requests[:-1] if is_last else requests:
            total *= math.comb(max(free, each.request.count), each.request.count)
            if each.request.is_whole or each.request.alone:
                free -= each.request.count
        if is_last:  # it fails with all but one of its GPUs found, after every choice of fewer
            total *= max(free, 2 ** requests[-1].request.count)
    return total


def _is_uniform(
    requests: Sequence[PlannedRequest], constraints: Sequence[Constraint], claims: Sequence[object]
) -> bool:
    """Whether what fails only makes the others change places: all requests have to differ, or each needs at
    most what the one before it needs, so that a failing one has no free place at all."""
    if any(len(each["requests"]) == len(requests) and "distinctAttribute" in each for each in constraints):
        return True
    return not constraints and len(claims) == 1 and _is_chain(requests)


def _is_chain(requests: Sequence[PlannedRequest]) -> bool:
    first = [way.selector for way in requests[0].alternatives]
    return all(
        _needs_no_more(after.request, before.request)
        and first == [way.selector for way in after.alternatives]
        for before, after in itertools.pairwise(requests)
    )


def _needs_no_more(small: GpuRequest, large: GpuRequest) -> bool:
    if small.cores_percent > large.cores_percent or (small.alone and not large.alone):
        return False
    if large.memory_bytes is not None and small.memory_bytes is not None:
        return small.memory_bytes <= large.memory_bytes
    if large.takes_all_memory or small.takes_all_memory:
        return large.takes_all_memory
    return (small.memory_bytes or 0) <= (large.memory_bytes or 0) and (small.memory_percent or 0) <= (
        large.memory_percent or 0
    )
