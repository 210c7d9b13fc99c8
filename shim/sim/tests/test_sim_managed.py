# SPDX-License-Identifier: Apache-2.0
"""Managed memory is on a GPU as far as it was brought there."""

import struct
from typing import Any

import pytest

from shim.sim.tests import structs
from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, Probe
from shim.sim.tests.structs import location, pool_props, raw

KEPT = 0xABCDEF
CPU = 0xFFFFFFFF
PER_THREAD = 2


def managed(probe: Probe, size: int) -> int:
    answer = probe.call("cuMemAllocManaged", {"out": 0}, size, 1)
    assert answer.code == 0
    address: int = answer.outputs[0]
    return address


def by_value(where: bytes) -> int:
    """A CUmemLocation as it is passed in a register."""
    value: int = struct.unpack("<Q", where)[0]
    return value


def prefetch(probe: Probe, address: int, size: int, where: bytes = location()) -> int:
    return probe.code("cuMemPrefetchAsync_v2", address, size, by_value(where), 0, 0)


def test_memory_comes_with_the_first_use_by_the_gpu(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    address = managed(probe, 10 * MIB)
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemsetD8_v2", address + 3 * MIB, 1, 1) == 0
    assert node.group("g")["used"] == CONTEXT + PAGE
    assert node.group("g")["requested"] == PAGE
    assert probe.code("cuMemcpyDtoD_v2", address + 5 * MIB, address, 2 * MIB) == 0
    assert node.gpu()["used"] == CONTEXT + 3 * PAGE, "pages 1, 2 and 3"
    assert probe.code("cuMemFree_v2", address) == 0
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemFree_v2", address) == 1


@pytest.mark.parametrize(
    ("size", "taken"),
    [(PAGE, PAGE), (PAGE + 1, 2 * PAGE), (1000, PAGE), (9 * MIB, 5 * PAGE)],
    ids=["page", "page+1", "small", "odd"],
)
def test_prefetch_brings_all_of_a_range(node: Node, size: int, taken: int) -> None:
    probe = node.probe()
    probe.start()
    address = managed(probe, size)
    for name in ("cuMemPrefetchAsync", "cuMemPrefetchAsync_ptsz"):
        assert probe.code(name, address, size, 0, 0) == 0
        assert node.gpu()["used"] == CONTEXT + taken
        assert probe.code(name, address, size, CPU, 0) == 0
        assert node.gpu()["used"] == CONTEXT
    for where in (location(structs.HOST), location(structs.HOST_NUMA), location(structs.HOST_NUMA_CURRENT)):
        assert prefetch(probe, address, size) == 0
        assert node.gpu()["used"] == CONTEXT + taken
        assert prefetch(probe, address, size, where) == 0
        assert node.gpu()["used"] == CONTEXT


def test_memory_is_on_one_gpu_at_a_time(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    probe.start()
    address = managed(probe, 4 * PAGE)
    assert prefetch(probe, address, 4 * PAGE) == 0
    assert prefetch(probe, address, 3 * PAGE, location(number=1)) == 0
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [CONTEXT + PAGE, 3 * PAGE]


def test_a_full_gpu_evicts_other_managed_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    first, second = managed(probe, 100 * MIB), managed(probe, 100 * MIB)
    kept = probe.allocate(L4_CAPACITY - CONTEXT - 120 * MIB)
    assert prefetch(probe, first, 100 * MIB) == 0
    assert prefetch(probe, second, 100 * MIB) == 0, "cuda.h: other managed pages make room"
    assert node.gpu()["used"] == L4_CAPACITY
    assert probe.code("cuMemFree_v2", second) == 0
    assert node.gpu()["used"] == L4_CAPACITY - 100 * MIB
    huge = managed(probe, 200 * MIB)
    assert prefetch(probe, huge, 200 * MIB) == 0, "the rest stays with the host"
    assert node.gpu()["used"] == node.gpu()["peak"] == L4_CAPACITY
    assert probe.code("cuMemFree_v2", kept) == 0
    assert node.gpu()["used"] == CONTEXT + 120 * MIB


def words(*values: int) -> Any:
    return raw(struct.pack(f"<{len(values)}Q", *values))


def test_batches_prefetch_each_range_to_its_place(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    probe.start()
    one, two, three = (managed(probe, PAGE) for _ in range(3))
    ranges = (words(one, two, three), words(PAGE, PAGE, PAGE), 3)
    places = (raw(location() + location(number=1)), words(0, 1), 2)
    for name, stream, code in [
        ("cuMemPrefetchBatchAsync", 0, 1),
        ("cuMemPrefetchBatchAsync", PER_THREAD, 0),
        ("cuMemPrefetchBatchAsync_ptsz", 0, 0),
        ("cuMemDiscardAndPrefetchBatchAsync", PER_THREAD, 0),
    ]:
        assert probe.code(name, *ranges, *places, 0, stream) == code
        used = [gpu["used"] for gpu in empty_node.books()["gpus"]]
        assert used == ([CONTEXT, 0] if code else [CONTEXT + PAGE, 2 * PAGE])
    assert probe.code("cuMemDiscardBatchAsync", words(one), words(PAGE), 1, 0, PER_THREAD) == 0
    for bad in [
        (places[0], words(1, 2), 2),
        (places[0], words(0, 3), 2),
        (places[0], words(0, 0), 2),
        (0, 0, 0),
    ]:
        assert probe.code("cuMemPrefetchBatchAsync", *ranges, *bad, 0, PER_THREAD) == 1
    wild = (words(one, KEPT), words(PAGE, PAGE), 2)
    assert probe.code("cuMemPrefetchBatchAsync", *wild, raw(location(number=1)), words(0), 1, 0, 2) == 1
    assert empty_node.gpu(1)["used"] == 2 * PAGE, "all or nothing"


def test_a_managed_pool_is_prefetched_like_an_allocation(node: Node) -> None:
    probe = node.probe()
    probe.start()
    pool = probe.call("cuMemPoolCreate", {"out": 0}, pool_props(type_=structs.MANAGED)).outputs[0]
    address = probe.call("cuMemAllocFromPoolAsync", {"out": 0}, 6 * MIB, pool, 0).outputs[0]
    assert prefetch(probe, address, 6 * MIB) == 0
    assert node.gpu()["used"] == CONTEXT + 6 * MIB
    assert prefetch(probe, address, 7 * MIB) == 1
    assert probe.code("cuMemFreeAsync", address, 0) == 0
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemPoolDestroy", pool) == 0


def test_managed_memory_ends_with_its_context(node: Node) -> None:
    probe = node.probe()
    probe.start()
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    assert prefetch(probe, managed(probe, 50 * MIB), 50 * MIB) == 0
    assert node.gpu()["used"] == 2 * CONTEXT + 50 * MIB
    assert probe.code("cuCtxDestroy_v2", made) == 0
    assert node.gpu()["used"] == CONTEXT


def attribute(probe: Probe, address: int, which: int, size: int = 4) -> list[int]:
    answer = probe.call("cuMemRangeGetAttribute", raw(b"\0" * size), size, which, address, PAGE)
    assert answer.code == 0
    return list(struct.unpack(f"<{size // 4}i", bytes.fromhex(answer.outputs[0])))


def test_advice_is_remembered(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address = managed(probe, PAGE)
    assert [attribute(probe, address, which)[0] for which in (1, 2, 4)] == [0, -2, -2]
    assert probe.code("cuMemAdvise", address, PAGE, 1, 0) == 0
    assert probe.code("cuMemAdvise", address, PAGE, 3, CPU) == 0
    assert probe.code("cuMemAdvise_v2", address, PAGE, 5, by_value(location())) == 0
    assert prefetch(probe, address, PAGE) == 0
    assert [attribute(probe, address, which)[0] for which in (1, 2, 4, 7, 8)] == [1, -1, 0, 1, 0]
    assert attribute(probe, address, 3, 12) == [0, -2, -2]
    for advice in (2, 4, 6):
        assert probe.code("cuMemAdvise", address, PAGE, advice, 0) == 0
    assert [attribute(probe, address, which)[0] for which in (1, 2, 3)] == [0, -2, -2]


def test_misuse_changes_nothing(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address, linear = managed(probe, PAGE), probe.allocate(PAGE)
    for code, target, size, where in [
        (1, address, PAGE + 1, location()),
        (1, address, 0, location()),
        (1, linear, PAGE, location()),
        (1, KEPT, PAGE, location()),
        (1, address, PAGE, location(0)),
        (1, address, PAGE, location(structs.DOMAIN)),
        (101, address, PAGE, location(number=4)),
    ]:
        assert prefetch(probe, target, size, where) == code
    assert probe.code("cuMemPrefetchAsync_v2", address, PAGE, by_value(location()), 1, 0) == 1
    assert probe.code("cuMemPrefetchAsync", address, PAGE, 9, 0) == 101
    assert probe.code("cuMemAdvise", linear, PAGE, 1, 0) == 1
    assert probe.code("cuMemAdvise", address, PAGE, 7, 0) == 1
    assert probe.code("cuMemAdvise", address, PAGE, 3, 5) == 101
    answer = probe.call("cuMemRangeGetAttribute", raw(b"\xee" * 4), 4, 99, address, PAGE)
    assert (answer.code, answer.outputs) == (1, ["ee" * 4])
    assert node.gpu()["used"] == CONTEXT + PAGE
