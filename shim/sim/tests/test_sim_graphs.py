# SPDX-License-Identifier: Apache-2.0
"""Graphs: made by hand and by capture, instantiated, updated and launched, as cuda.h says."""

import struct
import time

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, PAGE, Node
from shim.sim.tests.test_sim_compute import function, launch, load, made, milliseconds

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED, WRONG_THREAD = range(901, 909)
UNSUPPORTED = 900


class Device:
    """A process with a context, its code, and short ways to call it."""

    def __init__(self, node: Node) -> None:
        self.probe = node.probe()
        self.probe.start()
        self.module = load(self.probe)

    def kernel(self, name: str) -> int:
        return function(self.probe, self.module, name)

    def graph(self) -> int:
        return made(self.probe, "cuGraphCreate")

    def stream(self) -> int:
        return made(self.probe, "cuStreamCreate", 1)

    def add_kernel(self, graph: int, kernel: int, *before: int, blocks: int = 1) -> int:
        params = struct.pack("<QIIIIIIIxxxxQQQQ", kernel, blocks, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0)
        nodes = {"bytes": struct.pack(f"<{len(before)}Q", *before).hex()} if before else 0
        answer = self.probe.call(
            "cuGraphAddKernelNode_v2", {"out": 0}, graph, nodes, len(before), {"bytes": params.hex()}
        )
        assert answer.code == 0
        node: int = answer.outputs[0]
        return node

    def instantiate(self, graph: int, flags: int = 0) -> int:
        answer = self.probe.call("cuGraphInstantiateWithFlags", {"out": 0}, graph, flags)
        assert answer.code == 0
        executable: int = answer.outputs[0]
        return executable

    def begin(self, stream: int, mode: int = GLOBAL) -> None:
        assert self.probe.code("cuStreamBeginCapture_v2", stream, mode) == 0

    def end(self, stream: int) -> tuple[int, int]:
        answer = self.probe.call("cuStreamEndCapture", stream, {"out": 5})
        return answer.code, answer.outputs[0]

    def status(self, stream: int) -> int:
        answer = self.probe.call("cuStreamIsCapturing", stream, {"bytes": "ffffffff"})
        assert answer.code == 0
        return int.from_bytes(bytes.fromhex(answer.outputs[0]), "little")

    def time_of(self, executable: int, stream: int) -> float:
        start, end = made(self.probe, "cuEventCreate"), made(self.probe, "cuEventCreate")
        assert self.probe.code("cuEventRecord", start, stream) == 0
        assert self.probe.code("cuGraphLaunch", executable, stream) == 0
        assert self.probe.code("cuEventRecord", end, stream) == 0
        assert self.probe.code("cuEventSynchronize", end) == 0
        return milliseconds(self.probe, start, end)


@pytest.fixture
def device(node: Node) -> Device:
    return Device(node)


def test_a_graph_takes_the_time_of_its_longest_way(device: Device) -> None:
    graph, kernel, stream = device.graph(), device.kernel("spin_50ms"), device.stream()
    first = device.add_kernel(graph, kernel)
    branches = [device.add_kernel(graph, kernel, first) for _ in range(2)]
    device.add_kernel(graph, kernel, *branches)
    assert 150 <= device.time_of(device.instantiate(graph), stream) < 190


def test_a_captured_stream_runs_nothing_and_becomes_a_graph(device: Device) -> None:
    probe, kernel, stream = device.probe, device.kernel("spin_50ms"), device.stream()
    device.begin(stream)
    assert device.status(stream) == 1
    for _ in range(3):
        assert launch(probe, kernel, stream) == 0
    code, graph = device.end(stream)
    assert (code, device.status(stream), probe.code("cuStreamQuery", stream)) == (0, 0, 0)
    assert probe.call("cuGraphGetNodes", graph, 0, {"out": 0}).outputs == [3]
    assert probe.call("cuGraphGetEdges", graph, 0, 0, {"out": 0}).outputs == [2]
    executable = device.instantiate(graph)
    assert probe.code("cuGraphDestroy", graph) == 0
    assert 150 <= device.time_of(executable, stream) < 190
    assert probe.code("cuGraphExecDestroy", executable) == 0
    assert probe.code("cuGraphLaunch", executable, stream) == 1


def test_streams_join_a_capture_by_events(device: Device) -> None:
    probe, kernel = device.probe, device.kernel("spin_50ms")
    first, second = device.stream(), device.stream()
    fork, join = made(probe, "cuEventCreate"), made(probe, "cuEventCreate")
    device.begin(first)
    assert launch(probe, kernel, first, 1) == 0
    assert probe.code("cuEventRecord", fork, first) == 0
    assert probe.code("cuStreamWaitEvent", second, fork, 0) == 0
    assert device.status(second) == 1
    assert [launch(probe, kernel, stream, 1) for stream in (first, second)] == [0, 0]
    assert probe.code("cuEventQuery", fork) == CAPTURED
    assert device.end(first) == (INVALIDATED, 0)

    device.begin(first)
    assert launch(probe, kernel, first, 1) == 0
    assert probe.code("cuEventRecord", fork, first) == 0
    assert probe.code("cuStreamWaitEvent", second, fork, 0) == 0
    assert [launch(probe, kernel, stream, 1) for stream in (first, second)] == [0, 0]
    assert device.end(second) == (UNMATCHED, 5)
    assert device.end(first)[0] == INVALIDATED

    device.begin(first)
    assert launch(probe, kernel, first, 1) == 0
    assert probe.code("cuEventRecord", fork, first) == 0
    assert probe.code("cuStreamWaitEvent", second, fork, 0) == 0
    assert [launch(probe, kernel, stream, 1) for stream in (first, second)] == [0, 0]
    assert probe.code("cuEventRecord", join, second) == 0
    assert probe.code("cuStreamWaitEvent", first, join, 0) == 0
    code, graph = device.end(first)
    assert code == 0
    assert 100 <= device.time_of(device.instantiate(graph), first) < 149
    assert probe.code("cuStreamWaitEvent", second, fork, 0) == CAPTURED, "its capture has ended"


def test_a_fork_that_does_not_come_back_is_an_error(device: Device) -> None:
    probe, kernel = device.probe, device.kernel("plain")
    first, second, fork = device.stream(), device.stream(), made(probe, "cuEventCreate")
    device.begin(first)
    assert probe.code("cuEventRecord", fork, first) == 0
    assert probe.code("cuStreamWaitEvent", second, fork, 0) == 0
    assert launch(probe, kernel, second) == 0
    assert device.end(first) == (UNJOINED, 0)
    assert (device.status(first), device.status(second)) == (0, 0)


@pytest.mark.parametrize(
    ("request_", "mode", "code"),
    [
        (("cuStreamSynchronize", "captured"), RELAXED, UNSUPPORTED),
        (("cuStreamQuery", "captured"), RELAXED, UNSUPPORTED),
        (("cuCtxSynchronize",), GLOBAL, UNSUPPORTED),
        (("cuCtxSynchronize",), THREAD_LOCAL, UNSUPPORTED),
        (("cuStreamQuery", "other"), GLOBAL, UNSUPPORTED),
        (("cuEventQuery", "event"), GLOBAL, UNSUPPORTED),
        (("cuModuleLoadData", {"out": 0}, ".version 8.0"), GLOBAL, UNSUPPORTED),
        (("cuStreamWaitEvent", "captured", "event", 0), RELAXED, ISOLATION),
    ],
    ids=lambda value: "-".join(str(part) for part in value) if isinstance(value, tuple) else str(value),
)
def test_what_must_not_be_done_spoils_a_capture(
    device: Device, request_: tuple[object, ...], mode: int, code: int
) -> None:
    probe, stream = device.probe, device.stream()
    event = made(probe, "cuEventCreate")
    assert probe.code("cuEventRecord", event, device.stream()) == 0
    names = {"captured": stream, "other": device.stream(), "event": event}
    device.begin(stream, mode)
    call = [names.get(part, part) if isinstance(part, str) else part for part in request_]
    assert probe.code(*call) == code
    assert device.status(stream) == 2
    assert launch(probe, device.kernel("plain") if mode == RELAXED else 0, stream) in (INVALIDATED, 400)
    assert device.end(stream) == (INVALIDATED, 0)


@pytest.mark.parametrize("mode", [THREAD_LOCAL, RELAXED], ids=["thread-local", "relaxed"])
def test_other_threads_may_go_on_unless_the_capture_is_global(device: Device, mode: int) -> None:
    probe, stream = device.probe, device.stream()
    event = made(probe, "cuEventCreate")
    device.begin(stream, mode)
    assert probe.code("in_thread", "cuEventQuery", event) == 0
    if mode == RELAXED:
        assert probe.code("cuEventQuery", event) == 0
    assert device.end(stream)[0] == 0
    device.begin(stream, GLOBAL)
    assert probe.code("in_thread", "cuEventQuery", event) == UNSUPPORTED
    assert device.end(stream)[0] == INVALIDATED


def test_a_thread_may_declare_itself_careful(device: Device) -> None:
    probe, stream = device.probe, device.stream()
    event = made(probe, "cuEventCreate")
    device.begin(stream, GLOBAL)
    before = probe.call("cuThreadExchangeStreamCaptureMode", {"bytes": "02000000"})
    assert (before.code, before.outputs) == (0, ["00000000"])
    assert probe.code("cuEventQuery", event) == 0
    assert probe.call("cuThreadExchangeStreamCaptureMode", {"bytes": "00000000"}).outputs == ["02000000"]
    assert device.end(stream)[0] == 0


def test_the_legacy_stream_cannot_be_captured_nor_used_beside_one(device: Device) -> None:
    probe, kernel = device.probe, device.kernel("plain")
    assert probe.code("cuStreamBeginCapture_v2", 0, RELAXED) == UNSUPPORTED
    blocking = made(probe, "cuStreamCreate", 0)
    device.begin(blocking, RELAXED)
    assert probe.code("cuStreamBeginCapture_v2", blocking, RELAXED) == 401
    assert launch(probe, kernel, 0) == IMPLICIT
    assert device.end(blocking) == (INVALIDATED, 0)
    assert probe.code("cuStreamEndCapture", blocking, {"out": 0}) == 401
    assert launch(probe, kernel, 0) == 0


def test_a_capture_ends_in_its_own_thread_unless_relaxed(device: Device) -> None:
    probe, stream = device.probe, device.stream()
    device.begin(stream, THREAD_LOCAL)
    assert probe.code("in_thread", "cuStreamEndCapture", stream, {"out": 0}) == WRONG_THREAD
    assert device.end(stream)[0] == 0
    device.begin(stream, RELAXED)
    assert probe.code("in_thread", "cuStreamEndCapture", stream, {"out": 0}) == 0


def test_the_per_thread_twin_captures_the_threads_own_stream(device: Device) -> None:
    probe, kernel = device.probe, device.kernel("spin_50ms")
    assert probe.code("cuStreamBeginCapture_v2_ptsz", 0, RELAXED) == 0
    assert launch(probe, kernel, 0, twin="_ptsz") == 0
    answer = probe.call("cuStreamEndCapture_ptsz", 0, {"out": 0})
    assert answer.code == 0
    assert probe.call("cuGraphGetNodes", answer.outputs[0], 0, {"out": 0}).outputs == [1]


def test_children_are_copies_and_run_inside(device: Device) -> None:
    probe, kernel, stream = device.probe, device.kernel("spin_50ms"), device.stream()
    inner, outer = device.graph(), device.graph()
    device.add_kernel(inner, kernel)
    first = device.add_kernel(outer, kernel)
    before = {"bytes": struct.pack("<Q", first).hex()}
    child = probe.call("cuGraphAddChildGraphNode", {"out": 0}, outer, before, 1, inner).outputs[0]
    device.add_kernel(inner, kernel)
    device.add_kernel(outer, kernel, child)
    assert 150 <= device.time_of(device.instantiate(outer), stream) < 190
    held = probe.call("cuGraphChildGraphNodeGetGraph", child, {"out": 0}).outputs[0]
    assert held != inner
    assert probe.code("cuGraphDestroy", held) == 1, "it is its node's"


def test_a_circle_is_refused(device: Device) -> None:
    probe, graph, kernel = device.probe, device.graph(), device.kernel("plain")
    first = device.add_kernel(graph, kernel)
    second = device.add_kernel(graph, kernel, first)
    pair = [{"bytes": struct.pack("<Q", node).hex()} for node in (second, first)]
    assert probe.code("cuGraphAddDependencies", graph, *pair, 1) == 0
    assert probe.code("cuGraphInstantiateWithFlags", {"out": 0}, graph, 0) == 1
    assert probe.code("cuGraphRemoveDependencies", graph, *pair, 1) == 0
    assert probe.code("cuGraphAddDependencies", graph, pair[1], pair[0], 1) == 1, "it is there already"
    device.instantiate(graph)


def test_updates_want_the_same_shape(device: Device) -> None:
    probe, stream = device.probe, device.stream()
    slow, fast = device.kernel("spin_50ms"), device.kernel("spin_20us")
    graph, same, other = device.graph(), device.graph(), device.graph()
    node = device.add_kernel(graph, slow)
    device.add_kernel(graph, slow, node)
    device.add_kernel(same, fast, device.add_kernel(same, fast))
    device.add_kernel(other, fast)
    executable = device.instantiate(graph)
    info = {"bytes": "00" * 24}
    changed = probe.call("cuGraphExecUpdate_v2", executable, other, info)
    assert (changed.code, changed.outputs[0][:8]) == (910, "02000000")
    assert probe.code("cuGraphExecUpdate_v2", executable, same, info) == 0
    assert device.time_of(executable, stream) < 40
    params = struct.pack("<QIIIIIIIxxxxQQQQ", slow, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0).hex()
    assert probe.code("cuGraphExecKernelNodeSetParams_v2", executable, node, {"bytes": params}) == 0
    assert device.time_of(executable, stream) >= 49
    assert probe.code("cuGraphNodeSetEnabled", executable, node, 0) == 0
    assert device.time_of(executable, stream) < 40


ALLOC = struct.pack("<iiii", 1, 0, 1, 0) + b"\0" * 72 + struct.pack("<QQQQ", 0, 0, 16 * MIB, 0)


def add_alloc(device: Device, graph: int) -> tuple[int, int]:
    """(node, address)."""
    answer = device.probe.call("cuGraphAddMemAllocNode", {"out": 0}, graph, 0, 0, {"bytes": ALLOC.hex()})
    assert answer.code == 0
    return answer.outputs[0], int.from_bytes(bytes.fromhex(answer.outputs[1])[-8:], "little")


def test_memory_of_a_graph_comes_with_its_launch(node: Node, device: Device) -> None:
    probe, graph, stream = device.probe, device.graph(), device.stream()
    loaded = node.gpu()["used"]
    alloc, address = add_alloc(device, graph)
    assert node.gpu()["used"] == loaded
    assert probe.code("cuGraphClone", {"out": 0}, graph) == 801
    assert probe.code("cuGraphDestroyNode", alloc) == 801
    executable = device.instantiate(graph)
    assert probe.code("cuGraphInstantiateWithFlags", {"out": 0}, graph, 0) == 801
    assert node.gpu()["used"] == loaded
    assert probe.code("cuGraphLaunch", executable, stream) == 0
    assert node.gpu()["used"] >= loaded + 16 * MIB
    assert probe.code("cuGraphLaunch", executable, stream) == 1, "it is live"
    assert probe.code("cuMemFree_v2", address) == 0
    assert node.gpu()["used"] >= loaded + 16 * MIB, "kept for the next launch"
    assert probe.code("cuGraphExecDestroy", executable) == 0
    device.instantiate(graph)
    assert probe.code("cuDeviceGraphMemTrim", 0) == 0
    assert node.gpu()["used"] == loaded


def test_a_graph_frees_what_it_allocates(node: Node, device: Device) -> None:
    probe, graph, stream = device.probe, device.graph(), device.stream()
    alloc, address = add_alloc(device, graph)
    before = {"bytes": struct.pack("<Q", alloc).hex()}
    assert probe.code("cuGraphAddMemFreeNode", {"out": 0}, graph, before, 1, 0x1234) == 1
    assert probe.code("cuGraphAddMemFreeNode", {"out": 0}, graph, before, 1, address) == 0
    executable = device.instantiate(graph)
    assert [probe.code("cuGraphLaunch", executable, stream) for _ in range(5)] == [0] * 5
    assert probe.code("cuMemFree_v2", address) == 1


def test_graphs_of_many_kernels_are_placed_at_once(device: Device) -> None:
    graph, kernel, stream = device.graph(), device.kernel("spin_20us"), device.stream()
    last = device.add_kernel(graph, kernel)
    for _ in range(499):
        last = device.add_kernel(graph, kernel, last)
    executable = device.instantiate(graph)
    started = time.monotonic()
    assert device.time_of(executable, stream) == pytest.approx(10, abs=2)
    assert time.monotonic() - started < 1


def test_bad_graph_calls_change_nothing(node: Node, device: Device) -> None:
    probe, graph = device.probe, device.graph()
    node_ = device.add_kernel(graph, device.kernel("plain"))
    assert probe.code("cuGraphCreate", {"out": 0}, 1) == 1
    assert probe.code("cuGraphAddEmptyNode", {"out": 9}, graph, 0, 1) == 1
    assert probe.code("cuGraphInstantiateWithFlags", {"out": 9}, graph, 1 << 20) == 1
    assert probe.code("cuGraphInstantiateWithFlags", {"out": 9}, graph, 4) == 801
    assert probe.code("cuGraphHostNodeGetParams", node_, {"bytes": "00" * 16}) == 1
    assert probe.code("cuGraphDestroy", graph) == 0
    assert probe.code("cuGraphDestroy", graph) == 1
    assert probe.code("cuGraphNodeGetType", node_, {"out": 0}) == 1
    assert node.gpu()["used"] <= CONTEXT + PAGE
