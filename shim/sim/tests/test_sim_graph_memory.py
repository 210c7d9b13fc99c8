# SPDX-License-Identifier: Apache-2.0
"""Memory of graphs: there from the first launch on, and kept until it is trimmed."""

import struct

import pytest

from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, Probe
from shim.sim.tests.structs import pool_props, raw

KEPT = 0xABCDEF
SIZE = 10 * MIB
USED, USED_HIGH, RESERVED, RESERVED_HIGH = 0, 1, 2, 3
AUTO_FREE = 1
RELAXED = 2


def figure(probe: Probe, attribute: int) -> int:
    answer = probe.call("cuDeviceGetGraphMemAttribute", 0, attribute, {"out": KEPT})
    assert answer.code == 0
    value: int = answer.outputs[0]
    return value


class Graph:
    """An allocation, and if wanted its free."""

    def __init__(self, probe: Probe, *, size: int = SIZE, freed: bool) -> None:
        self.probe = probe
        self.graph = probe.call("cuGraphCreate", {"out": 0}, 0).outputs[0]
        params = bytes.fromhex(pool_props()["bytes"]) + struct.pack("<QQQQ", 0, 0, size, 0)
        answer = probe.call("cuGraphAddMemAllocNode", {"out": 0}, self.graph, 0, 0, raw(params))
        assert answer.code == 0
        node = answer.outputs[0]
        self.address = struct.unpack_from("<Q", bytes.fromhex(answer.outputs[1]), 112)[0]
        assert self.address
        if freed:
            before = raw(struct.pack("<Q", node))
            assert probe.code("cuGraphAddMemFreeNode", {"out": 0}, self.graph, before, 1, self.address) == 0

    def instantiate(self, flags: int = 0) -> int:
        answer = self.probe.call("cuGraphInstantiateWithFlags", {"out": 0}, self.graph, flags)
        assert answer.code == 0
        executable: int = answer.outputs[0]
        return executable


def test_memory_comes_with_the_launch_and_stays_until_the_trim(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    graph = Graph(probe, freed=True)
    executable = graph.instantiate()
    assert node.gpu()["used"] == CONTEXT
    for _ in range(2):
        assert probe.code("cuGraphLaunch", executable, 0) == 0
        assert probe.code("cuCtxSynchronize") == 0
        assert node.group("g")["used"] == CONTEXT + SIZE
        assert node.group("g")["requested"] == SIZE
    assert [figure(probe, which) for which in range(4)] == [SIZE] * 4
    assert probe.code("cuDeviceGraphMemTrim", 0) == 0
    assert node.gpu()["used"] == CONTEXT
    assert [figure(probe, which) for which in range(4)] == [0, SIZE, 0, SIZE]
    assert probe.code("cuGraphLaunch", executable, 0) == 0
    assert node.gpu()["used"] == CONTEXT + SIZE
    assert probe.code("cuGraphExecDestroy", executable) == 0
    assert probe.code("cuGraphDestroy", graph.graph) == 0
    assert node.gpu()["used"] == CONTEXT + SIZE
    assert (figure(probe, USED), figure(probe, RESERVED)) == (0, SIZE)
    assert probe.code("cuDeviceGraphMemTrim", 0) == 0
    assert node.gpu()["used"] == CONTEXT


def test_an_upload_takes_memory_too(node: Node) -> None:
    probe = node.probe()
    probe.start()
    executable = Graph(probe, freed=True).instantiate()
    assert probe.code("cuGraphUpload", executable, 0) == 0
    assert node.gpu()["used"] == CONTEXT + SIZE
    assert probe.code("cuGraphLaunch", executable, 0) == 0
    assert node.gpu()["used"] == CONTEXT + SIZE


@pytest.mark.parametrize("how", ["cuMemFree_v2", "cuMemFreeAsync"])
def test_a_pointer_lives_until_it_is_freed(node: Node, how: str) -> None:
    probe = node.probe()
    probe.start()
    graph = Graph(probe, freed=False)
    executable = graph.instantiate()
    assert probe.code("cuMemsetD8_v2", graph.address, 1, 1) == 1, "not there yet"
    assert probe.code("cuGraphLaunch", executable, 0) == 0
    assert probe.code("cuCtxSynchronize") == 0
    assert probe.code("cuMemsetD8_v2", graph.address, 1, SIZE) == 0
    assert probe.code("cuGraphLaunch", executable, 0) == 1, "its last allocation is not freed"
    assert probe.code("cuDeviceGraphMemTrim", 0) == 0
    assert node.gpu()["used"] == CONTEXT + SIZE, "a live pointer is not trimmed"
    arguments = (graph.address, 0) if how.endswith("Async") else (graph.address,)
    assert [probe.code(how, *arguments) for _ in range(2)] == [0, 1]
    assert node.gpu()["used"] == CONTEXT + SIZE
    assert probe.code("cuGraphLaunch", executable, 0) == 0
    assert probe.code("cuGraphExecDestroy", executable) == 0
    assert probe.code("cuGraphDestroy", graph.graph) == 0
    assert probe.code("cuMemsetD8_v2", graph.address, 1, SIZE) == 0, "it outlives its graph"
    assert probe.code(how, *arguments) == 0
    assert probe.code("cuDeviceGraphMemTrim", 0) == 0
    assert node.gpu()["used"] == CONTEXT


def test_auto_free_lets_a_graph_run_again(node: Node) -> None:
    probe = node.probe()
    probe.start()
    executable = Graph(probe, freed=False).instantiate(AUTO_FREE)
    assert [probe.code("cuGraphLaunch", executable, 0) for _ in range(3)] == [0, 0, 0]
    assert node.gpu()["used"] == CONTEXT + SIZE


def test_a_full_gpu_refuses_a_launch_and_keeps_nothing(node: Node) -> None:
    probe = node.probe()
    probe.start()
    small, large = (
        Graph(probe, freed=True).instantiate(),
        Graph(probe, size=2 * SIZE, freed=True).instantiate(),
    )
    kept = probe.allocate(L4_CAPACITY - CONTEXT - SIZE)
    assert probe.code("cuGraphLaunch", large, 0) == 2
    assert node.gpu()["used"] == L4_CAPACITY - SIZE
    assert probe.code("cuGraphLaunch", small, 0) == 0
    assert node.gpu()["used"] == L4_CAPACITY
    assert probe.code("cuCtxSynchronize") == 0
    assert probe.allocate(SIZE), "what no graph uses now makes room"
    assert probe.code("cuMemFree_v2", kept) == 0
    assert probe.code("cuGraphLaunch", large, 0) == 0
    assert node.gpu()["used"] == CONTEXT + 3 * SIZE


def test_what_goes_to_make_room_is_counted_on_no_more(node: Node) -> None:
    """The slack of an ended graph covers half of a new one, until it is given back for its other half."""
    probe = node.probe()
    probe.start()
    ended = Graph(probe, freed=True)
    executable = ended.instantiate()
    assert probe.code("cuGraphLaunch", executable, 0) == 0
    assert probe.code("cuGraphExecDestroy", executable) == 0
    assert probe.code("cuGraphDestroy", ended.graph) == 0
    pool = probe.call("cuDeviceGetDefaultMemPool", {"out": 0}, 0).outputs[0]
    assert probe.code("cuMemPoolSetAttribute", pool, 4, {"out": 1 << 40}) == 0
    idle = probe.call("cuMemAllocAsync", {"out": 0}, 1, 0).outputs[0]
    assert probe.code("cuMemFreeAsync", idle, 0) == 0
    probe.allocate(probe.info()[0])
    assert node.gpu()["used"] == L4_CAPACITY
    new = Graph(probe, size=2 * SIZE, freed=True).instantiate()
    assert probe.code("cuGraphLaunch", new, 0) == 0
    assert (figure(probe, USED), figure(probe, RESERVED)) == (2 * SIZE, 2 * SIZE)
    assert node.gpu()["used"] == L4_CAPACITY - 32 * MIB - SIZE + 2 * SIZE


def test_small_allocations_share_pages(node: Node) -> None:
    probe = node.probe()
    probe.start()
    for expected in (PAGE, PAGE, 2 * PAGE):
        executable = Graph(probe, size=MIB, freed=True).instantiate()
        assert probe.code("cuGraphLaunch", executable, 0) == 0
        assert node.gpu()["used"] == CONTEXT + expected


def test_captured_allocations_are_the_graphs(node: Node) -> None:
    probe = node.probe()
    probe.start()
    stream = probe.call("cuStreamCreate", {"out": 0}, 1).outputs[0]
    assert probe.code("cuStreamBeginCapture_v2", stream, RELAXED) == 0
    address = probe.call("cuMemAllocAsync", {"out": 0}, SIZE, stream).outputs[0]
    assert probe.code("cuMemsetD8Async", address, 7, SIZE, stream) == 0
    assert probe.code("cuMemFreeAsync", probe.allocate(1), stream) == 1, "not a graph's"
    graph = probe.call("cuStreamEndCapture", stream, {"out": 0}).outputs[0]
    assert node.gpu()["used"] == CONTEXT + PAGE, "the plain allocation of one byte"
    executable = probe.call("cuGraphInstantiateWithFlags", {"out": 0}, graph, 0).outputs[0]
    assert probe.code("cuGraphLaunch", executable, stream) == 0
    assert probe.code("cuStreamSynchronize", stream) == 0
    assert node.gpu()["used"] == CONTEXT + PAGE + SIZE
    assert probe.call("cuMemcpyDtoH_v2", {"bytes": "00"}, address + SIZE - 1, 1).outputs == ["07"]
    assert probe.code("cuMemFreeAsync", address, stream) == 0


def test_allocation_is_forbidden_during_a_global_capture(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kept = probe.allocate(PAGE)
    stream = probe.call("cuStreamCreate", {"out": 0}, 1).outputs[0]
    for request_ in [("cuMemAlloc_v2", {"out": KEPT}, 1), ("cuMemFree_v2", kept)]:
        assert probe.code("cuStreamBeginCapture_v2", stream, 0) == 0
        answer = probe.call(*request_)
        assert answer.code == 900
        assert answer.outputs in ([KEPT], [])
        assert probe.code("cuStreamEndCapture", stream, {"out": 0}) == 901
    assert node.gpu()["used"] == CONTEXT + PAGE


def test_killed_process_frees_graph_memory(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    assert probe.code("cuGraphLaunch", Graph(probe, freed=False).instantiate(), 0) == 0
    assert node.group("g")["used"] == CONTEXT + SIZE
    probe.kill()
    assert node.gpu()["used"] == 0
