# SPDX-License-Identifier: Apache-2.0
"""Linear memory that is freed in stream order stays until its stream has got there."""

from collections.abc import Iterator
from contextlib import contextmanager

from shim.sim.tests.simnode import CONTEXT, MIB, Node, Probe, wait_until

INVALID_VALUE = 1
SIZE = 64 * MIB


def used(node: Node) -> int:
    """Beside the contexts."""
    gpu = node.gpu()
    contexts = sum(int(process["contexts"]) for process in node.books()["processes"])
    return int(gpu["used"]) - CONTEXT * contexts


@contextmanager
def busy_stream(probe: Probe) -> Iterator[int]:
    """A stream that gets no further until the block is left."""
    stream: int = probe.call("cuStreamCreate", {"out": 0}, 1).outputs[0]
    assert probe.code("launch_host", stream, 0) == 0
    wait_until(lambda: bool(probe.call("is_at_gate").outputs[0]), "the host function has begun")
    yield stream
    probe.call("open_gate")
    assert probe.code("cuStreamSynchronize", stream) == 0


def test_memory_stays_until_the_stream_gets_there(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address = probe.allocate(SIZE)
    with busy_stream(probe) as stream:
        assert probe.code("cuMemFreeAsync", address, stream) == 0
        probe.info()
        assert used(node) == SIZE
        assert probe.code("cuMemFreeAsync", address, stream) == INVALID_VALUE
        assert probe.code("cuMemFree_v2", address) == INVALID_VALUE
    assert used(node) == 0
    assert probe.code("cuMemFree_v2", address) == INVALID_VALUE


def test_an_idle_stream_frees_at_once(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("cuMemFreeAsync", probe.allocate(SIZE), 0) == 0
    assert used(node) == 0


def test_a_managed_allocation_is_freed_in_stream_order_as_well(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address = probe.call("cuMemAllocManaged", {"out": 0}, SIZE, 1).outputs[0]
    assert probe.code("cuMemsetD8_v2", address, 1, SIZE) == 0
    with busy_stream(probe) as stream:
        assert probe.code("cuMemFreeAsync", address, stream) == 0
        assert used(node) == SIZE
    assert used(node) == 0


def test_a_context_takes_with_it_what_was_to_be_freed(node: Node) -> None:
    probe = node.probe()
    primary = probe.start()
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    address = probe.allocate(SIZE)
    assert probe.code("cuCtxSetCurrent", primary) == 0
    with busy_stream(probe) as stream:
        assert probe.code("cuMemFreeAsync", address, stream) == 0
        assert probe.code("cuCtxDestroy_v2", made) == 0
        assert used(node) == 0
    assert used(node) == 0
