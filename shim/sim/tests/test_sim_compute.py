# SPDX-License-Identifier: Apache-2.0
"""Kernels take the GPU time that their names say: in streams, beside one another, in turns with others."""

import signal
import struct
import time

import pytest

from shim.sim.tests.simnode import Node, Probe, wait_until

NOT_READY = 600
PTX = ".version 8.0\n.target sm_75\n.address_size 64\n" + "".join(
    f".visible .entry {name}(\n.param .u64 a)\n{{ ret; }}\n"
    for name in (
        *("spin_20us", "spin_1ms", "spin_50ms", "_Z9wait_2msPf", "plain", "spin_param_ns", "reads_fault"),
    )
)


def load(probe: Probe) -> int:
    answer = probe.call("cuModuleLoadData", {"out": 0}, PTX)
    assert answer.code == 0
    module: int = answer.outputs[0]
    return module


def function(probe: Probe, module: int, name: str) -> int:
    answer = probe.call("cuModuleGetFunction", {"out": 0}, module, name)
    assert answer.code == 0
    found: int = answer.outputs[0]
    return found


def made(probe: Probe, name: str, flags: int = 0) -> int:
    answer = probe.call(name, {"out": 0}, flags)
    assert answer.code == 0
    handle: int = answer.outputs[0]
    return handle


def launch(probe: Probe, kernel: int, stream: int = 0, blocks: int = 100000, twin: str = "") -> int:
    return probe.code(f"cuLaunchKernel{twin}", kernel, blocks, 1, 1, 256, 1, 1, 0, stream, 0, 0)


def milliseconds(probe: Probe, start: int, end: int) -> float:
    answer = probe.call("cuEventElapsedTime", {"out": 0}, start, end)
    assert answer.code == 0
    return float(struct.unpack("<f", struct.pack("<I", answer.outputs[0] & 0xFFFFFFFF))[0])


@pytest.mark.parametrize(
    ("name", "expected"), [("spin_20us", 0.02), ("spin_1ms", 1), ("_Z9wait_2msPf", 2), ("spin_50ms", 50)]
)
def test_a_kernel_is_as_long_as_its_name_says(node: Node, name: str, expected: float) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), name)
    start, end = made(probe, "cuEventCreate"), made(probe, "cuEventCreate")
    assert launch(probe, kernel) == 0
    assert probe.code("cuEventRecord", start, 0) == 0
    assert [launch(probe, kernel) for _ in range(2)] == [0, 0]
    assert probe.code("cuEventRecord", end, 0) == 0
    assert probe.code("cuEventSynchronize", end) == 0
    if expected >= 50:  # short ones may end before the next is there
        assert milliseconds(probe, start, end) == pytest.approx(2 * expected, abs=1e-3)
    else:
        assert milliseconds(probe, start, end) >= expected - 1e-3


def test_what_is_not_done_is_not_ready(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    event = made(probe, "cuEventCreate")
    assert probe.code("cuEventQuery", event) == 0
    before = time.monotonic()
    assert [launch(probe, kernel) for _ in range(4)] == [0] * 4
    assert probe.code("cuEventRecord", event, 0) == 0
    assert probe.code("cuStreamQuery", 0) == NOT_READY
    assert probe.code("cuEventQuery", event) == NOT_READY
    assert probe.call("cuEventElapsedTime", {"out": 9}, event, event).outputs == [9]
    assert probe.code("cuCtxSynchronize") == 0
    assert time.monotonic() - before >= 0.2
    assert [probe.code("cuStreamQuery", 0), probe.code("cuEventQuery", event)] == [0, 0]


def elapsed_of_two(probe: Probe, kernel: int, streams: tuple[int, int], blocks: int) -> float:
    start, ends = made(probe, "cuEventCreate"), [made(probe, "cuEventCreate") for _ in streams]
    assert probe.code("cuEventRecord", start, streams[0]) == 0
    for stream, end in zip(streams, ends, strict=True):
        assert launch(probe, kernel, stream, blocks) == 0
        assert probe.code("cuEventRecord", end, stream) == 0
    assert probe.code("cuCtxSynchronize") == 0
    return max(milliseconds(probe, start, end) for end in ends)


def test_small_kernels_of_two_streams_run_beside_one_another(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    streams = (made(probe, "cuStreamCreate", 1), made(probe, "cuStreamCreate", 1))
    assert 50 <= elapsed_of_two(probe, kernel, streams, 1) < 90
    assert elapsed_of_two(probe, kernel, streams, 100000) >= 99.9, "each fills the GPU"
    assert elapsed_of_two(probe, kernel, (streams[0], streams[0]), 1) >= 99.9, "a stream is in order"


def test_the_legacy_stream_waits_for_blocking_streams(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    blocking, free = made(probe, "cuStreamCreate", 0), made(probe, "cuStreamCreate", 1)
    assert elapsed_of_two(probe, kernel, (blocking, 0), 1) >= 99.9
    assert elapsed_of_two(probe, kernel, (0, blocking), 1) >= 99.9
    assert elapsed_of_two(probe, kernel, (free, 0), 1) < 90
    assert elapsed_of_two(probe, kernel, (2, blocking), 1) < 90, "the thread's own stream is no barrier"


def test_a_stream_waits_for_an_event_of_another(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    first, second = made(probe, "cuStreamCreate", 1), made(probe, "cuStreamCreate", 1)
    start, middle, end = (made(probe, "cuEventCreate") for _ in range(3))
    assert probe.code("cuEventRecord", start, first) == 0
    assert launch(probe, kernel, first, 1) == 0
    assert probe.code("cuEventRecord", middle, first) == 0
    assert probe.code("cuStreamWaitEvent", second, middle, 0) == 0
    assert launch(probe, kernel, second, 1) == 0
    assert probe.code("cuEventRecord", end, second) == 0
    assert probe.code("cuEventSynchronize", end) == 0
    assert milliseconds(probe, start, end) >= 99.9


def test_a_full_queue_blocks_the_launch(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_1ms")
    stream = made(probe, "cuStreamCreate", 1)
    before = time.monotonic()
    assert [launch(probe, kernel, stream) for _ in range(1024 + 200)] == [0] * 1224
    assert time.monotonic() - before >= 0.2
    assert probe.code("cuStreamQuery", stream) == NOT_READY


def test_processes_share_the_gpu_in_equal_parts(node: Node) -> None:
    ready = []
    for probe in (node.probe(), node.probe()):
        probe.start()
        kernel = function(probe, load(probe), "spin_50ms")
        ready.append((probe, kernel, made(probe, "cuEventCreate"), made(probe, "cuEventCreate")))
    for probe, kernel, start, end in ready:
        assert probe.code("cuEventRecord", start, 0) == 0
        assert [launch(probe, kernel) for _ in range(4)] == [0] * 4
        assert probe.code("cuEventRecord", end, 0) == 0
    for probe, _, _, end in ready:
        assert probe.code("cuEventSynchronize", end) == 0
    times = [milliseconds(probe, start, end) for probe, _, start, end in ready]
    # 200 ms of work each. In turns: about 400 on a loaded machine; one after the other: 200 and 400.
    assert 300 < min(times) <= max(times) < 450


def test_a_killed_process_stops_using_the_gpu(node: Node) -> None:
    other = node.probe()
    other.start()
    kernel = function(other, load(other), "spin_50ms")
    assert [launch(other, kernel) for _ in range(200)] == [0] * 200
    probe = node.probe()
    probe.start()
    mine = function(probe, load(probe), "spin_50ms")
    other.kill()
    before = time.monotonic()
    assert [launch(probe, mine) for _ in range(4)] == [0] * 4
    assert probe.code("cuCtxSynchronize") == 0
    assert time.monotonic() - before < 0.35


def test_bad_launches_are_refused(node: Node) -> None:
    probe = node.probe()
    probe.start()
    module = load(probe)
    kernel = function(probe, module, "plain")
    sizes = [(0, 1), (1, 0), (1, 1025)]
    for blocks, threads in sizes:
        assert probe.code("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, 0, 0, 0) == 1
    assert probe.code("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 1 << 20, 0, 0, 0) == 1
    assert probe.code("cuLaunchKernel", 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == 400
    assert probe.code("cuLaunchCooperativeKernel", kernel, 100000, 1, 1, 256, 1, 1, 0, 0, 0) == 720
    assert probe.code("cuModuleUnload", module) == 0
    assert launch(probe, kernel) == 400
    assert probe.code("cuModuleUnload", module) == 400


@pytest.mark.parametrize(
    ("image", "code"),
    [("nonsense", 200), ("", 200), (".version 8.0\n.entry a()", 0)],
    ids=["text", "empty", "ptx"],
)
def test_only_code_is_loaded(node: Node, image: str, code: int) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call("cuModuleLoadData", {"out": 7}, image)
    assert answer.code == code
    assert (answer.outputs == [7]) == (code != 0)


def test_libraries_are_of_no_context(node: Node) -> None:
    probe = node.probe()
    assert probe.code("cuInit", 0) == 0
    library = probe.call("cuLibraryLoadData", {"out": 0}, PTX, 0, 0, 0, 0, 0, 0).outputs[0]
    kernel = probe.call("cuLibraryGetKernel", {"out": 0}, library, "spin_1ms").outputs[0]
    assert probe.code("cuLibraryGetKernel", {"out": 0}, library, "none") == 500
    assert launch(probe, kernel) == 201
    probe.retain()
    assert launch(probe, kernel) == 0, "a kernel is launched where it is needed"
    assert probe.code("cuCtxSynchronize") == 0
    found = probe.call("cuKernelGetFunction", {"out": 0}, kernel).outputs[0]
    assert launch(probe, found) == 0
    assert probe.code("cuLibraryUnload", library) == 0
    assert launch(probe, found) == 400


def test_a_lost_gpu_launches_nothing(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    stream = made(probe, "cuStreamCreate", 1)
    assert launch(probe, kernel, stream) == 0
    assert node.tool("inject", "lost", "--gpu", "0").returncode == 0
    assert launch(probe, kernel, stream) == 999
    assert probe.code("cuStreamSynchronize", stream) == 999


def test_host_functions_run_in_order_and_hold_up_what_follows(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    stream, other = made(probe, "cuStreamCreate", 1), made(probe, "cuStreamCreate", 1)
    event, behind = made(probe, "cuEventCreate"), made(probe, "cuEventCreate")
    assert launch(probe, kernel, stream) == 0
    assert probe.code("launch_host", stream, 1) == 0
    assert probe.call("called_on_host").outputs == [], "the kernel is not done"
    assert probe.code("launch_host", stream, 0) == 0
    assert launch(probe, kernel, stream) == 0
    assert probe.code("cuEventRecord", event, stream) == 0
    assert probe.code("cuStreamWaitEvent", other, event, 0) == 0
    assert probe.code("cuEventRecord", behind, other) == 0
    wait_until(lambda: len(probe.call("called_on_host").outputs) == 1, "the first host function")
    assert [probe.code("cuStreamQuery", handle) for handle in (stream, other)] == [NOT_READY] * 2
    assert probe.code("cuEventQuery", behind) == NOT_READY
    assert probe.code("open_gate") == 0
    assert probe.code("cuEventSynchronize", behind) == 0
    assert probe.call("called_on_host").outputs == [[1, 800], [0, 800]], "no driver calls from there"
    assert probe.code("cuStreamQuery", stream) == 0
    assert probe.code("launch_host", 0, 2) == 0
    assert probe.code("cuCtxSynchronize") == 0
    assert probe.call("called_on_host").outputs[-1] == [2, 800]


def test_a_process_may_end_while_a_host_function_waits(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("launch_host", 0, 0) == 0
    probe.kill()
    wait_until(lambda: node.gpu()["used"] == 0, "the memory of the dead")


def test_a_stopped_process_goes_on_computing(node: Node) -> None:
    probe, other = node.probe(), node.probe()
    for one in (probe, other):
        one.start()
    kernel = function(probe, load(probe), "spin_50ms")
    start, end = made(probe, "cuEventCreate"), made(probe, "cuEventCreate")
    mine = function(other, load(other), "spin_50ms")
    assert probe.code("cuEventRecord", start, 0) == 0
    assert [launch(probe, kernel) for _ in range(2)] == [0, 0]
    assert probe.code("cuEventRecord", end, 0) == 0
    probe.popen.send_signal(signal.SIGSTOP)
    before = time.monotonic()
    assert [launch(other, mine) for _ in range(6)] == [0] * 6
    assert other.code("cuCtxSynchronize") == 0
    assert 0.3 <= time.monotonic() - before < 0.6, "nobody waits for the stopped one"
    probe.popen.send_signal(signal.SIGCONT)
    assert probe.code("cuEventSynchronize", end) == 0
    assert 100 <= milliseconds(probe, start, end) < 220


def test_the_books_know_who_had_how_much_gpu_time(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    assert [launch(probe, kernel) for _ in range(4)] == [0] * 4
    assert probe.code("cuCtxSynchronize") == 0
    books = node.books()
    assert books["gpus"][0]["busy_ns"] == 200_000_000
    assert [process["gpu_ns"] for process in books["processes"]] == [200_000_000]


def test_what_waits_in_a_context_ends_with_it(node: Node) -> None:
    probe = node.probe()
    probe.start()
    context = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    stream = made(probe, "cuStreamCreate", 1)
    event = made(probe, "cuEventCreate")
    assert probe.code("launch_host", stream, 0) == 0, "it runs at once, and waits"
    assert [probe.code("launch_host", stream, 1), probe.code("launch_host", stream, 2)] == [0, 0]
    assert probe.code("cuEventRecord", event, stream) == 0
    wait_until(lambda: probe.call("is_at_gate").outputs == [True], "the first to begin")
    assert probe.code("cuCtxDestroy_v2", context) == 0
    assert probe.code("cuStreamQuery", stream) == 400
    assert probe.code("cuEventSynchronize", event) == 0, "nothing is left to wait for"
    assert probe.code("open_gate") == 0
    wait_until(lambda: probe.call("called_on_host").outputs == [[0, 800]], "the one that ran")
    other = made(probe, "cuStreamCreate", 1)
    assert probe.code("launch_host", other, 3) == 0
    assert probe.code("cuStreamSynchronize", other) == 0
    assert probe.call("called_on_host").outputs == [[0, 800], [3, 800]]
