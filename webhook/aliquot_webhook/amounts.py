# SPDX-License-Identifier: Apache-2.0
"""How much a claim can take at most, in the four things that a budget can limit.

A claim is counted before anybody knows which GPU it gets, so everything counts at the largest: a request that
states no memory takes all of a card, and of alternatives (`firstAvailable`) each thing counts at the most
that one of them asks for.
"""

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text

ALL_DEVICES: Final = 32
"""What `allocationMode: All` counts as: no claim gets more devices (AllocationResultsMaxSize)."""


class Thing(enum.StrEnum):
    """What a budget can limit: summed over all cards of all claims in a namespace."""

    MEMORY = "memory"
    """Bytes."""
    CORES = "cores"
    """Percent of one card's compute."""
    SHARES = "shares"
    """Places on cards: one for each share, all of a card's for an exclusive one."""
    GPUS = "gpus"
    """Cards, whole or in part: what `vgpu` counts."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """So much of each thing."""

    memory: int = 0
    cores: int = 0
    shares: int = 0
    gpus: int = 0

    def of(self, thing: Thing) -> int:
        """One of them."""
        return int(getattr(self, thing))

    def __add__(self, other: "Amounts") -> "Amounts":
        return self._with(other, lambda one, two: one + two)

    def __or__(self, other: "Amounts") -> "Amounts":
        """The larger of each."""
        return self._with(other, max)

    def __mul__(self, factor: int) -> "Amounts":
        return Amounts(*(self.of(thing) * factor for thing in Thing))

    def _with(self, other: "Amounts", combine: Callable[[int, int], int]) -> "Amounts":
        return Amounts(*(combine(self.of(thing), other.of(thing)) for thing in Thing))


def of_claim(
    spec: object,
    *,
    classes: Collection[str],
    whole_bytes: int | None,
    memory: Mapping[str, int] | None = None,
) -> Amounts:
    """The most that a claim with `spec` (a ResourceClaimSpec) can take of GPUs of `classes`.

    `whole_bytes` is the memory of the largest GPU, None while none is known. `memory` overrides the memory of
    requests by name where it is more (a live resize). Raises InvalidInput for a whole card of unknown size.
    """
    total = Amounts()
    for index, request in enumerate(items(dig(spec, "devices", "requests"))):
        field = f"spec.devices.requests[{index}]"
        name = text(obj(request).get("name"))
        alternatives = items(obj(request).get("firstAvailable")) or [obj(request).get("exactly")]
        most = Amounts()
        for each in alternatives:
            if dig(each, "deviceClassName") in classes and dig(each, "adminAccess") is not True:
                most |= _of_request(obj(each), whole_bytes, (memory or {}).get(name, 0), field=field)
        total += most
    return total


def of_allocation(claim: JsonObject) -> Amounts:
    """What a claim has been given of our GPUs; nothing without an allocation."""
    total = Amounts()
    for result in items(dig(claim, "status", "allocation", "devices", "results")):
        consumed = obj(dig(result, "consumedCapacity"))
        if dig(result, "driver") == names.DRIVER and dig(result, "adminAccess") is not True:
            total += Amounts(
                memory=_quantity(consumed, names.CAPACITY_MEMORY) or 0,
                cores=_quantity(consumed, names.CAPACITY_CORES) or 0,
                shares=_quantity(consumed, names.CAPACITY_SHARES) or 0,
                gpus=1,
            )
    return total


def in_force(claim: JsonObject, *, classes: Collection[str]) -> Amounts:
    """The memory of the limits that a claim's shares have on their node, by what the agent writes: more than
    allocated where they have grown. Whole cards, which have no limit, are left out."""
    whole = {
        text(obj(request).get("name"))
        for request in items(dig(claim, "spec", "devices", "requests"))
        for each in [obj(request).get("exactly"), *items(obj(request).get("firstAvailable"))]
        if dig(each, "deviceClassName") in classes
        and names.CAPACITY_MEMORY not in obj(dig(each, "capacity", "requests"))
    }
    limits = {
        _share(each): dig(each, "data", "limit")
        for each in items(dig(claim, "status", "devices"))
        if dig(each, "driver") == names.DRIVER
    }
    memory = 0
    for result in items(dig(claim, "status", "allocation", "devices", "results")):
        if dig(result, "driver") != names.DRIVER or dig(result, "adminAccess") is True:
            continue
        consumed = _quantity(obj(dig(result, "consumedCapacity")), names.CAPACITY_MEMORY) or 0
        limit = limits.get(_share(result))
        is_whole = text(dig(result, "request")).partition("/")[0] in whole
        memory += consumed if is_whole or not isinstance(limit, int) else max(limit, consumed)
    return Amounts(memory=memory)


def _share(result: object) -> tuple[object, ...]:
    return tuple(text(dig(result, key)) for key in ("pool", "device", "shareID"))


def uses(spec: object, *, classes: Collection[str]) -> bool:
    """Whether a claim with `spec` asks for a device of `classes`."""
    return any(
        dig(each, "deviceClassName") in classes
        for request in items(dig(spec, "devices", "requests"))
        for each in [obj(request).get("exactly"), *items(obj(request).get("firstAvailable"))]
    )


def _of_request(request: JsonObject, whole_bytes: int | None, resized_bytes: int, *, field: str) -> Amounts:
    wanted = obj(dig(request, "capacity", "requests"))
    memory = _quantity(wanted, names.CAPACITY_MEMORY)
    if memory is None:
        if whole_bytes is None:
            raise InvalidInput(
                field=field,
                value="a whole GPU",
                fix="this namespace has a budget, and no GPU is known yet, so a whole one has no size;"
                " ask for a size, or try again when a node publishes GPUs",
            )
        memory = whole_bytes
    cores, shares = _quantity(wanted, names.CAPACITY_CORES), _quantity(wanted, names.CAPACITY_SHARES)
    return Amounts(
        memory=-(-max(memory, resized_bytes, 1) // quantity.MIB) * quantity.MIB,
        cores=cores or 0,
        shares=1 if shares is None else max(shares, 1),
        gpus=1,
    ) * _count(request)


def _count(request: JsonObject) -> int:
    if request.get("allocationMode") == "All":
        return ALL_DEVICES
    count = request.get("count", 1)
    return count if isinstance(count, int) and count > 0 else 1


def _quantity(capacities: JsonObject, name: str) -> int | None:
    try:
        return quantity.parse(text(capacities[name]), field=name) if name in capacities else None
    except InvalidInput:
        return None  # the API server refuses what is no quantity
