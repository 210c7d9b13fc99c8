# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a cluster and who has what of them: from ResourceSlices, claims and taint rules. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli.cluster import meta

CAPACITIES: Final = (names.CAPACITY_MEMORY, names.CAPACITY_CORES, names.CAPACITY_SHARES)


@dataclass(frozen=True, slots=True)
class Condition:
    """What the agent says about a share."""

    kind: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Share:
    """What one claim has of one GPU; None where the agent has not reported."""

    namespace: str
    claim: str
    request: str
    share_id: str
    consumed: Mapping[str, int]
    pods: tuple[str, ...] = ()
    limit_bytes: int | None = None
    used_bytes: int | None = None
    peak_bytes: int | None = None
    denied: int | None = None
    processes: int | None = None
    throttled_s: float | None = None
    conditions: tuple[Condition, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """The limit in force, else what the scheduler gave."""
        return self.consumed.get(names.CAPACITY_MEMORY, 0) if self.limit_bytes is None else self.limit_bytes


@dataclass(frozen=True, slots=True)
class Taint:
    """Keeps claims away from a GPU."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU as the scheduler sees it."""

    node: str
    pool: str
    device: str
    published: Mapping[str, int] = field(default_factory=dict)
    """Capacities; empty for a GPU that claims hold but no slice shows."""
    raw: JsonObject = field(default_factory=dict)
    """The slice's device."""
    taints: tuple[Taint, ...] = ()
    shares: tuple[Share, ...] = ()

    @property
    def uuid(self) -> str:
        """As NVML spells it."""
        return text(dig(self.raw, "attributes", "uuid", "string")) or self.device

    @property
    def product(self) -> str:
        """The model's name."""
        return text(dig(self.raw, "attributes", "productName", "string")) or "?"

    @property
    def sharing(self) -> str:
        """How it is shared."""
        return text(dig(self.raw, "attributes", "sharing", "string"))

    @property
    def nominal_bytes(self) -> int:
        """What all shares together can have: changes by configuration only."""
        nominal = dig(self.raw, "attributes", "memoryBytes", "int")
        return nominal if isinstance(nominal, int) else self.published.get(names.CAPACITY_MEMORY, 0)

    def taken(self, capacity: str) -> int:
        """What claims have consumed of a capacity."""
        return sum(share.consumed.get(capacity, 0) for share in self.shares)

    def free(self, capacity: str) -> int:
        """What the scheduler can still give; a live resize may have lowered it."""
        return max(0, self.published.get(capacity, 0) - self.taken(capacity))


def cards(
    slices: Sequence[JsonObject], claims: Sequence[JsonObject], rules: Sequence[JsonObject] = ()
) -> tuple[Card, ...]:
    """All GPUs by node, in the order in which the scheduler tries them."""
    held = _held(claims)
    found: dict[tuple[str, str], Card] = {}
    for each in _newest(slices):
        pool, node = text(dig(each, "spec", "pool", "name")), text(dig(each, "spec", "nodeName"))
        for device in map(obj, items(dig(each, "spec", "devices"))):
            name = text(device.get("name"))
            found[(pool, name)] = Card(
                node=node or pool,
                pool=pool,
                device=name,
                published=_published(device),
                raw=device,
                taints=(*_taints(items(device.get("taints"))), *_ruled(rules, pool, name)),
                shares=tuple(held.pop((pool, name), ())),
            )
    for (pool, name), shares in held.items():
        found[(pool, name)] = Card(node=pool, pool=pool, device=name, shares=tuple(shares))
    return tuple(sorted(found.values(), key=lambda card: card.node))


def amount(capacities: object, name: str) -> int | None:
    """One quantity of a map; None where it is not there."""
    value = obj(capacities).get(name)
    try:
        return None if value is None else quantity.parse(text(value), field=name)
    except InvalidInput:
        return None


def _newest(slices: Sequence[JsonObject]) -> list[JsonObject]:
    """Our slices of the newest generation of each pool, in the scheduler's order: by name."""
    ours = [each for each in slices if dig(each, "spec", "driver") == names.DRIVER]
    newest: dict[str, int] = {}
    for each in ours:
        pool = text(dig(each, "spec", "pool", "name"))
        newest[pool] = max(_generation(each), newest.get(pool, 0))
    current = [each for each in ours if _generation(each) == newest[text(dig(each, "spec", "pool", "name"))]]
    return sorted(current, key=lambda each: meta(each, "name"))


def _generation(resource_slice: JsonObject) -> int:
    generation = dig(resource_slice, "spec", "pool", "generation")
    return generation if isinstance(generation, int) else 0


def _published(device: JsonObject) -> dict[str, int]:
    capacity = obj(device.get("capacity"))
    return {name: amount(capacity.get(name), "value") or 0 for name in capacity}


def _held(claims: Sequence[JsonObject]) -> dict[tuple[str, str], list[Share]]:
    held: dict[tuple[str, str], list[Share]] = {}
    for claim in claims:
        reports = {
            (text(dig(each, "pool")), text(dig(each, "device")), text(dig(each, "shareID"))): obj(each)
            for each in items(dig(claim, "status", "devices"))
        }
        for result in map(obj, items(dig(claim, "status", "allocation", "devices", "results"))):
            if result.get("driver") != names.DRIVER or result.get("adminAccess") is True:
                continue
            key = (text(result.get("pool")), text(result.get("device")))
            share_id = text(result.get("shareID"))
            held.setdefault(key, []).append(_share(claim, result, reports.get((*key, share_id), {})))
    return held


def _share(claim: JsonObject, result: JsonObject, report: JsonObject) -> Share:
    data = obj(report.get("data"))

    def count(name: str) -> int | None:
        value = data.get(name)
        return value if isinstance(value, int) else None

    throttled = data.get("throttled_s")
    consumed = obj(result.get("consumedCapacity"))
    return Share(
        namespace=meta(claim, "namespace"),
        claim=meta(claim, "name"),
        request=text(result.get("request")),
        share_id=text(result.get("shareID")),
        consumed={name: amount(consumed, name) or 0 for name in consumed},
        pods=tuple(
            text(dig(each, "name"))
            for each in items(dig(claim, "status", "reservedFor"))
            if dig(each, "resource") == "pods"
        ),
        limit_bytes=count("limit"),
        used_bytes=count("used"),
        peak_bytes=count("peak"),
        denied=count("denied"),
        processes=count("processes"),
        throttled_s=float(throttled) if isinstance(throttled, int | float) else None,
        conditions=tuple(
            Condition(*(text(dig(each, key)) for key in ("type", "status", "reason", "message")))
            for each in items(report.get("conditions"))
        ),
    )


def _taints(taints: Sequence[object]) -> list[Taint]:
    return [Taint(*(text(dig(each, key)) for key in ("key", "value", "effect"))) for each in taints]


def _ruled(rules: Sequence[JsonObject], pool: str, device: str) -> list[Taint]:
    """Taints of DeviceTaintRules (KEP-5055), which select by driver, pool and device."""
    this = {"driver": names.DRIVER, "pool": pool, "device": device}
    return _taints(
        [
            dig(rule, "spec", "taint")
            for rule in rules
            if all(dig(rule, "spec", "deviceSelector", key) in (None, value) for key, value in this.items())
        ]
    )
