# SPDX-License-Identifier: Apache-2.0
"""Pools take memory in steps, keep it as told, and give it back when they should."""

import pytest

from shim.sim.tests import structs
from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, Probe
from shim.sim.tests.structs import DESCRIPTOR, location, pool_props

STEP = 32 * MIB
KEPT = 0xABCDEF


def create(probe: Probe, **props: object) -> int:
    answer = probe.call("cuMemPoolCreate", {"out": 0}, pool_props(**props))  # type: ignore[arg-type]
    assert answer.code == 0
    pool: int = answer.outputs[0]
    return pool


def take(probe: Probe, size: int, pool: int | None = None, stream: int = 0) -> int:
    if pool is None:
        answer = probe.call("cuMemAllocAsync", {"out": 0}, size, stream)
    else:
        answer = probe.call("cuMemAllocFromPoolAsync", {"out": 0}, size, pool, stream)
    assert answer.code == 0
    address: int = answer.outputs[0]
    return address


def give(probe: Probe, address: int) -> None:
    assert probe.code("cuMemFreeAsync", address, 0) == 0


def figure(probe: Probe, pool: int, attribute: int) -> int:
    answer = probe.call("cuMemPoolGetAttribute", pool, attribute, {"out": KEPT})
    assert answer.code == 0
    value: int = answer.outputs[0]
    return value


def keep_everything(probe: Probe, pool: int) -> None:
    assert probe.code("cuMemPoolSetAttribute", pool, structs.THRESHOLD, {"out": (1 << 64) - 1}) == 0


def default_pool(probe: Probe, device: int = 0) -> int:
    answer = probe.call("cuDeviceGetDefaultMemPool", {"out": 0}, device)
    assert answer.code == 0
    pool: int = answer.outputs[0]
    return pool


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1], STEP),
        ([STEP], STEP),
        ([STEP + 1], 2 * STEP),
        ([20 * MIB, 12 * MIB], STEP),
        ([20 * MIB, 20 * MIB], 2 * STEP),
        ([20 * MIB, 20 * MIB, 24 * MIB], 3 * STEP),
        ([8000 * MIB], 8000 * MIB),
    ],
    ids=["byte", "step", "step+1", "fits", "second-step", "fragmented", "large"],
)
def test_a_pool_grows_in_steps(node: Node, sizes: list[int], reserved: int) -> None:
    probe = node.probe(group="g")
    probe.start()
    for size in sizes:
        take(probe, size)
    pool = default_pool(probe)
    assert figure(probe, pool, structs.RESERVED) == reserved
    assert figure(probe, pool, structs.USED) == sum(-(-size // 512) * 512 for size in sizes)
    assert node.group("g")["used"] == CONTEXT + reserved
    assert node.group("g")["requested"] == reserved


def test_freed_pool_memory_stays_until_a_synchronisation(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address = take(probe, 100 * MIB)
    give(probe, address)
    assert figure(probe, default_pool(probe), structs.USED) == 0
    assert node.gpu()["used"] == CONTEXT + 4 * STEP
    assert take(probe, 100 * MIB) == address, "addresses are reused at once"
    give(probe, address)
    assert probe.code("cuStreamSynchronize", 0) == 0
    assert node.gpu()["used"] == CONTEXT
    assert figure(probe, default_pool(probe), structs.RESERVED_HIGH) == 4 * STEP


@pytest.mark.parametrize(
    "synchronise", ["cuCtxSynchronize", "cuStreamSynchronize_ptsz", "cuEventSynchronize", "cuStreamQuery"]
)
def test_every_synchronisation_shrinks_pools(node: Node, synchronise: str) -> None:
    probe = node.probe()
    probe.start()
    give(probe, take(probe, 1))
    arguments = [0] if "Stream" in synchronise else []
    if "Event" in synchronise:
        event = probe.call("cuEventCreate", {"out": 0}, 0).outputs[0]
        assert probe.code("cuEventRecord", event, 0) == 0
        arguments = [event]
    assert probe.code(synchronise, *arguments) == 0
    assert node.gpu()["used"] == CONTEXT


def test_a_threshold_keeps_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    pool = default_pool(probe)
    assert probe.code("cuMemPoolSetAttribute", pool, structs.THRESHOLD, {"out": 70 * MIB}) == 0
    addresses = [take(probe, STEP) for _ in range(5)]
    for address in addresses:
        give(probe, address)
    assert probe.code("cuStreamSynchronize", 0) == 0
    assert node.gpu()["used"] == CONTEXT + 3 * STEP, "at least the threshold stays, in whole steps"
    assert probe.code("cuMemPoolSetAttribute", pool, structs.THRESHOLD, {"out": 0}) == 0
    assert probe.code("cuStreamSynchronize", 0) == 0
    assert node.gpu()["used"] == CONTEXT


def test_trim_keeps_what_it_is_told_and_what_is_used(node: Node) -> None:
    probe = node.probe()
    probe.start()
    pool = default_pool(probe)
    keep_everything(probe, pool)
    addresses = [take(probe, STEP) for _ in range(4)]
    for address in addresses[1:]:
        give(probe, address)
    assert probe.code("cuMemPoolTrimTo", pool, 3 * STEP) == 0
    assert node.gpu()["used"] == CONTEXT + 3 * STEP
    assert probe.code("cuMemPoolTrimTo", pool, 0) == 0
    assert node.gpu()["used"] == CONTEXT + STEP
    give(probe, addresses[0])
    assert probe.code("cuMemPoolTrimTo", pool, 0) == 0
    assert node.gpu()["used"] == CONTEXT


def test_a_destroyed_pool_lives_until_its_last_pointer(node: Node) -> None:
    probe = node.probe()
    probe.start()
    pool = create(probe)
    keep_everything(probe, pool)
    one, two = take(probe, STEP, pool), take(probe, STEP, pool)
    assert probe.code("cuDeviceSetMemPool", 0, pool) == 0
    assert probe.code("cuMemPoolDestroy", pool) == 0
    assert node.gpu()["used"] == CONTEXT + 2 * STEP
    assert probe.call("cuDeviceGetMemPool", {"out": 0}, 0).outputs == [default_pool(probe)]
    assert probe.code("cuMemPoolDestroy", pool) == 1
    assert probe.code("cuMemPoolGetAttribute", pool, structs.USED, {"out": 0}) == 1
    assert probe.code("cuMemAllocFromPoolAsync", {"out": 0}, 1, pool, 0) == 1
    give(probe, one)
    assert node.gpu()["used"] == CONTEXT + STEP
    assert probe.code("cuMemFree_v2", two) == 0, "cuMemFree takes pool pointers, too"
    assert node.gpu()["used"] == CONTEXT


def test_a_pool_outlives_contexts(node: Node) -> None:
    probe = node.probe()
    context = probe.start()
    address = take(probe, 1)
    assert probe.code("cuDevicePrimaryCtxRelease_v2", 0) == 0
    assert node.gpu()["used"] == STEP
    probe.retain()
    assert context
    give(probe, address)
    assert probe.code("cuCtxSynchronize") == 0
    assert node.gpu()["used"] == CONTEXT


def test_the_streams_device_counts(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    probe.start(1)
    stream = probe.call("cuStreamCreate", {"out": 0}, 1).outputs[0]
    probe.retain(0)
    take(probe, 1, stream=stream)
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [CONTEXT, CONTEXT + STEP]
    take(probe, 1, create(probe, where=location(number=0)), stream)
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [CONTEXT + STEP, CONTEXT + STEP]


def test_a_full_gpu_gives_the_last_page_and_then_refuses(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(L4_CAPACITY - CONTEXT - STEP - 2 * PAGE)
    take(probe, STEP)
    take(probe, PAGE + 1)
    refused = probe.call("cuMemAllocAsync", {"out": KEPT}, 2 * PAGE, 0)
    assert (refused.code, refused.outputs) == (2, [KEPT])
    assert node.gpu()["used"] == L4_CAPACITY


def test_unused_pool_memory_does_not_stand_in_the_way(node: Node) -> None:
    """A program that freed memory can allocate it, by whatever call."""
    probe = node.probe()
    probe.start()
    pool = default_pool(probe)
    keep_everything(probe, pool)
    give(probe, take(probe, 16000 * MIB))
    assert node.gpu()["used"] == CONTEXT + 16000 * MIB
    address = probe.allocate(16000 * MIB)
    assert node.gpu()["used"] == CONTEXT + 16000 * MIB
    assert node.gpu()["peak"] == CONTEXT + 16000 * MIB
    assert probe.code("cuMemFree_v2", address) == 0


def test_a_maximum_size_is_a_stop(node: Node) -> None:
    probe = node.probe()
    probe.start()
    pool = create(probe, maximum=40 * MIB + 1)
    assert figure(probe, pool, 13) == 42 * MIB, "CU_MEMPOOL_ATTR_MAX_POOL_SIZE, in whole pages"
    take(probe, STEP, pool)
    take(probe, 10 * MIB, pool)
    assert probe.code("cuMemAllocFromPoolAsync", {"out": 0}, 1, pool, 0) == 2
    assert node.gpu()["used"] == CONTEXT + 42 * MIB


@pytest.mark.parametrize(
    "props",
    [{"where": location(structs.HOST)}, {"where": location(structs.HOST_NUMA)}, {"type_": structs.MANAGED}],
    ids=["host", "numa", "managed"],
)
def test_host_and_managed_pools_take_nothing_from_the_gpu(node: Node, props: dict[str, object]) -> None:
    probe = node.probe()
    probe.start()
    pool = create(probe, **props)
    address = take(probe, 3 * MIB, pool)
    assert figure(probe, pool, structs.RESERVED) == STEP
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemFree_v2", address) == 0


def test_watermarks_are_reset_to_what_is_there(node: Node) -> None:
    probe = node.probe()
    probe.start()
    pool = default_pool(probe)
    first = take(probe, 3 * STEP)
    take(probe, 1000)
    give(probe, first)
    assert probe.code("cuStreamSynchronize", 0) == 0
    assert figure(probe, pool, structs.USED_HIGH) == 3 * STEP + 1024
    assert figure(probe, pool, structs.RESERVED_HIGH) == 4 * STEP
    for attribute, expected in ((structs.USED_HIGH, 1024), (structs.RESERVED_HIGH, STEP)):
        assert probe.code("cuMemPoolSetAttribute", pool, attribute, {"out": 1}) == 1
        assert probe.code("cuMemPoolSetAttribute", pool, attribute, {"out": 0}) == 0
        assert figure(probe, pool, attribute) == expected


def test_pools_tell_what_they_are(node: Node) -> None:
    probe = node.probe()
    probe.start()
    own = create(probe, handles=DESCRIPTOR)
    numbers = {9: 1, 10: DESCRIPTOR, 11: 0, 12: structs.DEVICE, 15: 0xFFFFFFFF}
    for attribute, expected in numbers.items():
        answer = probe.call("cuMemPoolGetAttribute", own, attribute, {"bytes": "ee" * 8})
        assert (answer.code, int.from_bytes(bytes.fromhex(answer.outputs[0])[:4], "little")) == (0, expected)
        assert answer.outputs[0].endswith("ee" * 4), "an int is four bytes"
    for attribute in (1, 2, 3):
        answer = probe.call("cuMemPoolGetAttribute", own, attribute, {"bytes": "00" * 4})
        assert answer.outputs == ["01000000"]
        assert probe.code("cuMemPoolSetAttribute", own, attribute, {"bytes": "00" * 4}) == 0
        assert probe.call("cuMemPoolGetAttribute", own, attribute, {"out": KEPT << 32}).outputs == [
            KEPT << 32
        ]


def test_current_pools_are_kept_per_place_and_type(node: Node) -> None:
    probe = node.probe()
    probe.start()
    where = {"bytes": location().hex()}
    managed = create(probe, type_=structs.MANAGED)
    assert probe.code("cuMemSetMemPool", where, structs.MANAGED, managed) == 0
    assert probe.call("cuMemGetMemPool", {"out": 0}, where, structs.MANAGED).outputs[0] == managed
    pinned = probe.call("cuMemGetMemPool", {"out": 0}, where, structs.PINNED).outputs[0]
    assert pinned == default_pool(probe)
    assert probe.code("cuMemSetMemPool", where, structs.PINNED, managed) == 1
    host = {"bytes": location(structs.HOST).hex()}
    standard = probe.call("cuMemGetDefaultMemPool", {"out": 0}, host, structs.PINNED).outputs[0]
    assert standard not in (0, pinned)
    assert probe.call("cuMemGetMemPool", {"out": 0}, host, structs.PINNED).outputs[0] == standard
    own = create(probe)
    assert probe.code("cuDeviceSetMemPool", 0, own) == 0
    take(probe, 1)
    assert figure(probe, own, structs.USED) == 512


@pytest.mark.parametrize(
    ("props", "code"),
    [
        ({"where": location(number=1)}, 1),
        ({"where": location(structs.HOST_NUMA_CURRENT)}, 1),
        ({"where": location(structs.INVISIBLE)}, 1),
        ({"where": location(0)}, 1),
        ({"where": location(structs.HOST), "handles": DESCRIPTOR}, 1),
        ({"type_": 0}, 1),
        ({"type_": structs.MANAGED, "maximum": MIB}, 1),
        ({"type_": structs.MANAGED, "handles": DESCRIPTOR}, 1),
        ({"security": 1}, 1),
        ({"reserved": b"\1"}, 1),
        ({"usage": 1}, 1),
        ({"handles": 2}, 801),
        ({"handles": 8}, 801),
    ],
    ids=str,
)
def test_impossible_pools_are_refused(node: Node, props: dict[str, object], code: int) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call("cuMemPoolCreate", {"out": KEPT}, pool_props(**props))  # type: ignore[arg-type]
    assert (answer.code, answer.outputs[0]) == (code, KEPT)


MISUSE = [
    ("cuMemAllocAsync", {"out": KEPT}, 0, 0),
    ("cuMemAllocAsync", 0, 1, 0),
    ("cuMemAllocFromPoolAsync", {"out": KEPT}, 1, 0, 0),
    ("cuMemAllocFromPoolAsync", {"out": KEPT}, 1, 0x5000, 0),
    ("cuMemFreeAsync", 0, 0),
    ("cuMemFreeAsync", 0x1234, 0),
    ("cuMemPoolDestroy", 0),
    ("cuMemPoolTrimTo", 0x5000, 0),
    ("cuMemPoolGetAttribute", 0, 4, {"out": KEPT}),
    ("cuMemPoolCreate", {"out": KEPT}, 0),
    ("cuDeviceSetMemPool", 0, 0),
    ("cuMemPoolExportPointer", {"bytes": "ab" * 64}, 0x1234),
]


@pytest.mark.parametrize("request_", MISUSE, ids=lambda request_: request_[0])
def test_misuse_changes_nothing(node: Node, request_: tuple[object, ...]) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call(*request_)
    kept = [part.get("out", part.get("bytes")) for part in request_ if isinstance(part, dict)]
    assert (answer.code, answer.outputs) == (1, kept)
    assert node.gpu()["used"] == CONTEXT


def test_double_and_wild_frees_of_pool_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address = take(probe, 1000)
    other = take(probe, 1000)
    assert probe.code("cuMemFreeAsync", address + 512, 0) == 1
    give(probe, address)
    assert probe.code("cuMemFreeAsync", address, 0) == 1
    assert probe.code("cuMemFree_v2", address) == 1
    assert probe.code("cuMemPoolDestroy", default_pool(probe)) == 1, "a default pool stays"
    assert figure(probe, default_pool(probe), structs.USED) == 1024
    linear = probe.allocate(PAGE)
    give(probe, linear)
    give(probe, other)


def test_default_stream_needs_a_context(node: Node) -> None:
    probe = node.probe()
    assert probe.code("cuMemAllocAsync", {"out": KEPT}, 1, 0) == 3
    assert probe.code("cuMemPoolCreate", {"out": KEPT}, pool_props()) == 3
    assert probe.code("cuInit", 0) == 0
    assert probe.code("cuMemAllocAsync", {"out": KEPT}, 1, 0) == 201
    assert probe.code("cuMemFreeAsync", 4096, 0) == 201
    pool = create(probe)
    assert figure(probe, pool, structs.RESERVED) == 0
    context = probe.retain()
    assert context
    assert probe.code("in_fork", "cuMemAllocAsync", {"out": KEPT}, 1, 0) == 3


def test_pool_memory_has_contents_and_ranges(node: Node) -> None:
    probe = node.probe()
    probe.start()
    one, two = take(probe, 600), take(probe, 3 * MIB)
    assert probe.code("cuMemsetD8_v2", one, 0x5A, 600) == 0
    assert probe.code("cuMemcpyDtoD_v2", two + 2 * MIB, one, 600) == 0
    back = probe.call("cuMemcpyDtoH_v2", {"bytes": "00" * 4}, two + 2 * MIB + 596, 4)
    assert back.outputs == ["5a" * 4]
    assert probe.code("cuMemsetD8_v2", one, 0, 601) == 1
    ranged = probe.call("cuMemGetAddressRange_v2", {"out": 0}, {"out": 0}, two + MIB)
    assert (ranged.code, ranged.outputs) == (0, [two, 3 * MIB])


def test_killed_process_frees_its_pools(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    take(probe, 1000 * MIB)
    take(probe, 100 * MIB, create(probe, handles=DESCRIPTOR))
    assert node.group("g")["used"] == CONTEXT + 1024 * MIB + 128 * MIB
    (process,) = node.books()["processes"]
    assert process["used"] == process["peak"] == CONTEXT + 1024 * MIB + 128 * MIB
    probe.kill()
    assert node.gpu()["used"] == 0
    assert node.group("g")["used"] == node.group("g")["requested"] == 0
