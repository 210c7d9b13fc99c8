# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the cluster has: a snapshot kept from a watch on our ResourceSlices.

Sizes are nominal (`memoryBytes`), so consumption and live capacity never change what admission accepts.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aliquot_api import names, quantity
from aliquot_api.config import Sharing
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode
from aliquot_api.wire import JsonObject, dig, items, obj, text

NUMA_NODE = "resource.kubernetes.io/numaNode"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of shareable GPU, as far as admission cares."""

    memory_bytes: int
    shares: int
    product: str = ""
    sharing: str = Sharing.SHIM.value
    time_slice: str = ""
    """Its length, where that is how the GPU is shared."""
    numa_node: int | None = None
    pcie_root: str | None = None

    @property
    def mode(self) -> str:
        """How it is shared, in the words of annotations."""
        return f"{self.sharing}={self.time_slice}" if self.time_slice else self.sharing

    def serves(self, wish: Mode) -> bool:
        """Whether it is shared as `wish` says."""
        return self.sharing == wish.sharing and wish.time_slice in (None, self.time_slice)


@dataclass(frozen=True, slots=True)
class Place:
    """One physical GPU."""

    uuid: str
    node: str
    gpu: Gpu


class Memo:
    """A bounded store of answers; forgetting one costs only time."""

    _MOST = 256

    def __init__(self) -> None:
        self._answers: dict[Hashable, object] = {}

    def get(self, question: Hashable) -> object:
        """The answer, None if it is not known."""
        return self._answers.get(question)

    def put(self, question: Hashable, answer: object) -> None:
        """Keep it."""
        if len(self._answers) >= self._MOST:
            self._answers = {}
        self._answers[question] = answer


@dataclass(frozen=True, slots=True)
class Inventory:
    """Distinct GPUs and node shapes: small however large the cluster is, so that admission stays quick."""

    gpus: tuple[tuple[Gpu, int], ...] = ()
    """Each kind of GPU with how many the cluster has, largest memory first."""
    nodes: tuple[tuple[Gpu, ...], ...] = ()
    """One node's GPUs, largest first; equal nodes once."""
    places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)
    """Every GPU by its UUID in lower case; those without a UUID are not here."""
    memo: Memo = field(default_factory=Memo, compare=False, repr=False)
    """Answers that were computed from this snapshot, by question: many pods are alike."""

    @property
    def largest(self) -> Gpu | None:
        """The GPU with most memory, None while no GPU is known."""
        return self.gpus[0][0] if self.gpus else None

    @property
    def most_gpus(self) -> int:
        """How many GPUs the best node has."""
        return max(map(len, self.nodes), default=0)

    def most_on_one_node(self, memory_bytes: int) -> int:
        """How many GPUs of at least `memory_bytes` the best node has."""
        return max(
            (sum(gpu.memory_bytes >= memory_bytes for gpu in node) for node in self.nodes),
            default=0,
        )

    def most_together(self, where: Callable[[Gpu], object]) -> int:
        """How many GPUs of one node agree about `where`; 0 if none says it."""
        counts = [
            max(Counter(where(gpu) for gpu in node if where(gpu) is not None).values(), default=0)
            for node in self.nodes
        ]
        return max(counts, default=0)

    def only(self, fits: Callable[[Gpu], bool]) -> "Inventory":
        """These GPUs and no others."""
        nodes = {tuple(gpu for gpu in node if fits(gpu)) for node in self.nodes}
        return Inventory(
            gpus=tuple((gpu, number) for gpu, number in self.gpus if fits(gpu)),
            nodes=_largest_first(nodes),
        )


def of_places(places: Iterable[Place]) -> Inventory:
    """The inventory of these GPUs."""
    by_node: dict[str, list[Gpu]] = {}
    for place in places:
        by_node.setdefault(place.node, []).append(place.gpu)
    return _inventory(by_node, {})


@dataclass(frozen=True, slots=True)
class Slice:
    """What one ResourceSlice says."""

    pool: str
    generation: int
    gpus: tuple[tuple[str, Gpu], ...]
    """With the UUID of each, which may be empty."""


def parse_slice(resource_slice: JsonObject) -> Slice:
    """A ResourceSlice of our driver. A device that is not shareable or not readable is left out."""
    spec = obj(resource_slice.get("spec"))
    generation = dig(spec, "pool", "generation")
    return Slice(
        pool=text(dig(spec, "pool", "name")),
        generation=generation if isinstance(generation, int) else 0,
        gpus=tuple(found for device in items(spec.get("devices")) if (found := _gpu(obj(device)))),
    )


def _gpu(device: JsonObject) -> tuple[str, Gpu] | None:
    attributes, capacity = obj(device.get("attributes")), obj(device.get("capacity"))
    memory = dig(attributes, "memoryBytes", "int")
    # Oversubscribed GPUs are outside the class that we write into claims.
    if dig(attributes, "oversubscribed", "bool") is True or not isinstance(memory, int) or memory <= 0:
        return None
    try:
        shares = quantity.parse(text(dig(capacity, names.CAPACITY_SHARES, "value")), field="shares")
    except InvalidInput:
        return None
    numa_node = dig(attributes, NUMA_NODE, "int")
    sharing = text(dig(attributes, "sharing", "string")) or Sharing.SHIM.value
    gpu = Gpu(
        memory_bytes=memory,
        shares=shares,
        product=text(dig(attributes, "productName", "string")),
        sharing=sharing,
        time_slice=text(dig(attributes, "timeSlice", "string")) if sharing == Sharing.TIMESLICE else "",
        numa_node=numa_node if isinstance(numa_node, int) else None,
        pcie_root=text(dig(attributes, PCIE_ROOT, "string")) or None,
    )
    return text(dig(attributes, "uuid", "string")), gpu


def summarise(slices: Iterable[Slice]) -> Inventory:
    """The inventory of all current slices; older generations of a pool do not count (KEP-4381)."""
    newest: dict[str, int] = {}
    slices = tuple(slices)
    for each in slices:
        newest[each.pool] = max(each.generation, newest.get(each.pool, 0))
    by_node: dict[str, list[Gpu]] = {}
    places: dict[str, Place] = {}
    for each in slices:
        if each.generation != newest[each.pool]:
            continue
        by_node.setdefault(each.pool, []).extend(gpu for _, gpu in each.gpus)
        for uuid, gpu in each.gpus:
            if uuid:
                places[uuid.lower()] = Place(uuid=uuid, node=each.pool, gpu=gpu)
    return _inventory(by_node, places)


def _inventory(by_node: Mapping[str, Sequence[Gpu]], places: Mapping[str, Place]) -> Inventory:
    counted = Counter(gpu for gpus in by_node.values() for gpu in gpus)
    shapes = {tuple(sorted(gpus, key=_rank)) for gpus in by_node.values()}
    return Inventory(
        gpus=tuple(sorted(counted.items(), key=lambda item: _rank(item[0]))),
        nodes=_largest_first(shapes),
        places=places,
    )


def _rank(gpu: Gpu) -> tuple[object, ...]:
    """Largest memory first; the rest only makes the order the same everywhere."""
    where = (-1 if gpu.numa_node is None else gpu.numa_node, gpu.pcie_root or "")
    return (-gpu.memory_bytes, gpu.product, gpu.shares, gpu.mode, *where)


def _largest_first(nodes: Iterable[tuple[Gpu, ...]]) -> tuple[tuple[Gpu, ...], ...]:
    return tuple(sorted({node for node in nodes if node}, key=lambda node: [_rank(gpu) for gpu in node]))


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
