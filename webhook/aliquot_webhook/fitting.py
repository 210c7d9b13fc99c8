# SPDX-License-Identifier: Apache-2.0
"""How one request can be served by the GPUs that may serve it: amounts and selectors, most welcome first.

A percentage needs an alternative for each memory size, and a card for oneself one for each number of
shares, because a claim states amounts.
"""

from collections.abc import Callable, Iterator
from typing import Final

from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput
from aliquot_webhook import cel
from aliquot_webhook.candidates import Candidates, Group
from aliquot_webhook.claims import Alternative
from aliquot_webhook.inventory import Gpu, Inventory
from aliquot_webhook.policy import DEFAULT_SHARES, Policy
from aliquot_webhook.requests import GpuRequest, Meant

MAX_ALTERNATIVES: Final = 8
"""FirstAvailableDeviceRequestMaxSize of resource.k8s.io/v1."""


class NotYetKnown(Exception):
    """The request can be understood only once a GPU is known; the text says why."""


def alternatives(meant: Meant, found: Candidates, policy: Policy) -> tuple[tuple[Alternative, ...], str]:
    """The ways to serve a request, and a warning if there are more than a claim can hold.

    Raises InvalidInput where no GPU or no node is large enough, NotYetKnown where that cannot be told.
    """
    request = meant.request
    if not found.everything.gpus and request.memory_percent is not None:
        raise NotYetKnown(
            "no GPU is known yet, so a percentage of its memory says nothing; ask for MiB with"
            f" {policy.resources.memory}, or try again when a node has published its GPUs"
        )
    if request.memory_percent is None and not request.is_exclusive_share:
        ways = [
            Alternative(group.selector, request.memory_bytes)
            for group in found.groups
            if not group.inventory.gpus or _fits(request.count, request.memory_bytes or 0, group.inventory)
        ]
    else:
        ways = [way for group in found.groups for way in _ways(request, group)]
    if not ways:
        raise _too_much(meant, found.everything, policy)
    left_out = ""
    if len(ways) > MAX_ALTERNATIVES:
        left_out = (
            f"container {request.container}: a claim holds {MAX_ALTERNATIVES} alternatives, and the"
            f" {len(ways) - MAX_ALTERNATIVES} least welcome kinds of GPU are left out; choose with"
            f" {names.ANNOTATION_GPU_TYPES}"
        )
    return tuple(ways[:MAX_ALTERNATIVES]), left_out


def _ways(request: GpuRequest, group: Group) -> Iterator[Alternative]:
    """For what depends on the card: a percentage, or a card for oneself."""
    known, memory_bytes = group.inventory, request.memory_bytes
    if not known.gpus:
        yield _alone(Alternative(selector=group.selector, memory_bytes=memory_bytes), DEFAULT_SHARES)
        return
    for size, shares in _kinds(request, known):
        if size is not None and request.memory_percent is not None:
            memory_bytes = max(quantity.MIB, quantity.round_down(size * request.memory_percent // 100))
        if _fits(request.count, memory_bytes or 0, known.only(_of_kind(size, shares))):
            clause = "" if size is None else cel.number_is_one_of("memoryBytes", [size])
            way = Alternative(selector=cel.both(group.selector, clause), memory_bytes=memory_bytes)
            yield way if shares is None else _alone(way, shares)


def _kinds(request: GpuRequest, known: Inventory) -> list[tuple[int | None, int | None]]:
    """Memory sizes and numbers of shares that make a difference: small cards first, then common ones."""
    counted: dict[tuple[int | None, int | None], int] = {}
    for gpu, number in known.gpus:
        kind = (
            gpu.memory_bytes if request.memory_percent is not None else None,
            gpu.shares if request.is_exclusive_share else None,
        )
        counted[kind] = counted.get(kind, 0) + number
    return sorted(counted, key=lambda kind: (kind[0] or 0, -counted[kind], -(kind[1] or 0)))


def _of_kind(size: int | None, shares: int | None) -> Callable[[Gpu], bool]:
    return lambda gpu: size in (None, gpu.memory_bytes) and shares in (None, gpu.shares)


def _alone(way: Alternative, shares: int) -> Alternative:
    """Cores alone do not keep out sharers that reserve none, so take every share of the card; the selector
    keeps that true on a card that has more."""
    selector = cel.both(way.selector, cel.capacity_is(names.CAPACITY_SHARES, str(shares)))
    return Alternative(selector=selector, memory_bytes=way.memory_bytes, shares=shares)


def _fits(count: int, memory_bytes: int, known: Inventory) -> bool:
    largest = known.largest
    if largest is None or largest.memory_bytes < memory_bytes:
        return False
    return count == 1 or known.most_on_one_node(memory_bytes) >= count


def _too_much(meant: Meant, known: Inventory, policy: Policy) -> InvalidInput:
    request = meant.request
    largest, wanted = known.largest, request.memory_bytes or 0
    if largest is not None and wanted > largest.memory_bytes:
        return InvalidInput(
            field=meant.memory.field if meant.memory else f"container {request.container}",
            # As a number: the API server has turned the author's 80000 into 80k before we see it.
            value=wanted // quantity.MIB // policy.memory_factor,
            fix="no GPU that this pod may use is that large; the largest,"
            f" {largest.product or 'unnamed'}, has {largest.memory_bytes // quantity.MIB} (MiB)",
        )
    size = f" of that size ({wanted // quantity.MIB} MiB)" if wanted else ""
    if request.memory_percent is not None:
        size = " of one memory size"
    return InvalidInput(
        field=meant.count.field if meant.count else f"container {request.container}",
        value=request.count,
        fix=f"{policy.resources.count} counts different physical GPUs on one node, and no node has more"
        f" than {_most_alike(request, known)}{size} that this pod may use",
    )


def _most_alike(request: GpuRequest, known: Inventory) -> int:
    kinds = _kinds(request, known)
    return max(known.only(_of_kind(*kind)).most_on_one_node(request.memory_bytes or 0) for kind in kinds)
