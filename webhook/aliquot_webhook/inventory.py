# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the cluster has: a snapshot kept from a watch on our ResourceSlices.

Sizes are nominal (`memoryBytes`), so consumption and live capacity never change what admission accepts.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput
from aliquot_webhook.wire import JsonObject, dig, items, obj, text


@dataclass(frozen=True, slots=True)
class Gpu:
    """One shareable GPU, as far as admission cares."""

    memory_bytes: int
    shares: int
    product: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Distinct GPUs and node shapes: small however large the cluster is, so that admission stays quick."""

    gpus: tuple[tuple[Gpu, int], ...] = ()
    """Each kind of GPU with how many the cluster has, largest memory first."""
    nodes: tuple[tuple[int, ...], ...] = ()
    """Memory sizes of one node's GPUs, largest first; equal nodes once."""

    @property
    def largest(self) -> Gpu | None:
        """The GPU with most memory, None while no GPU is known."""
        return self.gpus[0][0] if self.gpus else None

    def most_on_one_node(self, memory_bytes: int) -> int:
        """How many GPUs of at least `memory_bytes` the best node has."""
        return max((sum(size >= memory_bytes for size in node) for node in self.nodes), default=0)

    def usual_shares(self, memory_bytes: int) -> int | None:
        """The `shares` of most GPUs of at least `memory_bytes`, the larger one when equal; None if there
        is no such GPU."""
        counted: Counter[int] = Counter()
        for gpu, number in self.gpus:
            if gpu.memory_bytes >= memory_bytes:
                counted[gpu.shares] += number
        return max(counted, key=lambda shares: (counted[shares], shares), default=None)


@dataclass(frozen=True, slots=True)
class Slice:
    """What one ResourceSlice says."""

    pool: str
    generation: int
    gpus: tuple[Gpu, ...]


def parse_slice(resource_slice: JsonObject) -> Slice:
    """A ResourceSlice of our driver. A device that is not shareable or not readable is left out."""
    spec = obj(resource_slice.get("spec"))
    generation = dig(spec, "pool", "generation")
    return Slice(
        pool=text(dig(spec, "pool", "name")),
        generation=generation if isinstance(generation, int) else 0,
        gpus=tuple(gpu for device in items(spec.get("devices")) if (gpu := _gpu(obj(device)))),
    )


def _gpu(device: JsonObject) -> Gpu | None:
    attributes, capacity = obj(device.get("attributes")), obj(device.get("capacity"))
    memory = dig(attributes, "memoryBytes", "int")
    # Oversubscribed GPUs are outside the class that we write into claims.
    if dig(attributes, "oversubscribed", "bool") is True or not isinstance(memory, int) or memory <= 0:
        return None
    try:
        shares = quantity.parse(text(dig(capacity, names.CAPACITY_SHARES, "value")), field="shares")
    except InvalidInput:
        return None
    return Gpu(memory_bytes=memory, shares=shares, product=text(dig(attributes, "productName", "string")))


def summarise(slices: Iterable[Slice]) -> Inventory:
    """The inventory of all current slices; older generations of a pool do not count (KEP-4381)."""
    newest: dict[str, int] = {}
    slices = tuple(slices)
    for each in slices:
        newest[each.pool] = max(each.generation, newest.get(each.pool, 0))
    pools: dict[str, list[Gpu]] = {}
    for each in slices:
        if each.generation == newest[each.pool]:
            pools.setdefault(each.pool, []).extend(each.gpus)
    counted = Counter(gpu for gpus in pools.values() for gpu in gpus)
    shapes = {tuple(sorted((gpu.memory_bytes for gpu in gpus), reverse=True)) for gpus in pools.values()}
    return Inventory(
        gpus=tuple(sorted(counted.items(), key=lambda item: (-item[0].memory_bytes, item[0].product))),
        nodes=tuple(sorted(shapes - {()}, reverse=True)),
    )


class LiveInventory:
    """The sink of the watch: holds the slices, gives the snapshot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slices: dict[str, Slice] = {}
        self._snapshot = Inventory()

    def snapshot(self) -> Inventory:
        """What is known now; never waits."""
        return self._snapshot

    def replace(self, objects: Sequence[JsonObject]) -> None:
        """A fresh list of all slices."""
        with self._lock:
            self._slices = {text(dig(each, "metadata", "name")): parse_slice(each) for each in objects}
            self._snapshot = summarise(self._slices.values())

    def upsert(self, changed: JsonObject) -> None:
        """One slice was added or changed. Capacity changes often, what we read of it hardly ever."""
        name, parsed = text(dig(changed, "metadata", "name")), parse_slice(changed)
        with self._lock:
            if self._slices.get(name) != parsed:
                self._slices[name] = parsed
                self._snapshot = summarise(self._slices.values())

    def remove(self, gone: JsonObject) -> None:
        """One slice was deleted."""
        with self._lock:
            self._slices.pop(text(dig(gone, "metadata", "name")), None)
            self._snapshot = summarise(self._slices.values())
