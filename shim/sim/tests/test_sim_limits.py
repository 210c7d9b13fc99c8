# SPDX-License-Identifier: Apache-2.0
"""What a context costs beyond its base, and what ends with it."""

import pytest

from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, Probe

STACK, FIFO, HEAP, DEPTH, PENDING, L2_FETCH, L2_PERSISTING, SHARED_MEMORY, BLOCK = 0, 1, 2, 3, 4, 5, 6, 7, 10
KEPT = 0xABCDEF
L4_THREADS = 58 * 1536
"""That can be resident at the same time."""


def pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def limit(probe: Probe, which: int) -> int:
    answer = probe.call("cuCtxGetLimit", {"out": KEPT}, which)
    assert answer.code == 0
    value: int = answer.outputs[0]
    return value


@pytest.mark.parametrize(
    ("which", "value", "cost"),
    [
        (HEAP, 1024 * MIB, 1016 * MIB),
        (HEAP, 8 * MIB + 1, PAGE),
        (HEAP, MIB, 0),
        (FIFO, 101 * MIB, 100 * MIB),
        (STACK, 2048, pages(1024 * L4_THREADS)),
        (STACK, 64 << 10, pages((63 << 10) * L4_THREADS)),
        (DEPTH, 4, 300 * MIB),
        (PENDING, 2048 + 4096, 4 * MIB),
        (L2_FETCH, 128, 0),
        (BLOCK, 1 << 10, pages((1 << 10) * L4_THREADS // 64)),
    ],
    ids=["heap", "heap+1", "small-heap", "fifo", "stack", "large-stack", "depth", "pending", "l2", "block"],
)
def test_limits_cost_memory(node: Node, which: int, value: int, cost: int) -> None:
    probe = node.probe(group="g")
    probe.start()
    before = limit(probe, which)
    assert probe.code("cuCtxSetLimit", which, value) == 0
    assert limit(probe, which) == value
    assert node.group("g")["used"] == CONTEXT + cost
    assert node.group("g")["requested"] == 0
    assert probe.code("cuCtxSetLimit", which, before) == 0
    assert node.gpu()["used"] == CONTEXT
    assert node.gpu()["peak"] == CONTEXT + cost


def test_limits_end_with_their_context(node: Node) -> None:
    probe = node.probe()
    probe.start()
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    assert limit(probe, HEAP) == 8 * MIB
    assert probe.code("cuCtxSetLimit", HEAP, 108 * MIB) == 0
    assert probe.code("cuCtxSetLimit", FIFO, 11 * MIB) == 0
    assert node.gpu()["used"] == 2 * CONTEXT + 110 * MIB
    assert probe.code("cuCtxDestroy_v2", made) == 0
    assert node.gpu()["used"] == CONTEXT
    probe.retain()
    assert limit(probe, HEAP) == 8 * MIB


def test_a_limit_without_room_is_out_of_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(L4_CAPACITY - CONTEXT - 10 * MIB)
    assert probe.code("cuCtxSetLimit", HEAP, 18 * MIB + 1) == 2
    assert limit(probe, HEAP) == 8 * MIB
    assert probe.code("cuCtxSetLimit", HEAP, 1 << 60) == 2
    assert probe.code("cuCtxSetLimit", HEAP, 18 * MIB) == 0
    assert probe.info()[0] == 0


@pytest.mark.parametrize(
    ("which", "value", "code"),
    [
        (STACK, (512 << 10) + 1, 1),
        (DEPTH, 25, 1),
        (L2_FETCH, 129, 1),
        (SHARED_MEMORY, 1, 215),
        (8, 1, 215),
        (11, 1, 215),
        (KEPT, 1, 215),
    ],
    ids=["stack", "depth", "l2", "shared", "cig", "beyond", "wild"],
)
def test_impossible_limits_are_refused(node: Node, which: int, value: int, code: int) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("cuCtxSetLimit", which, value) == code
    assert node.gpu()["used"] == CONTEXT


def test_new_gpus_have_no_depth_limit(empty_node: Node) -> None:
    empty_node.init("h100")
    probe = empty_node.probe()
    probe.start()
    assert probe.code("cuCtxSetLimit", DEPTH, 3) == 215
    answer = probe.call("cuCtxGetLimit", {"out": KEPT}, DEPTH)
    assert (answer.code, answer.outputs) == (215, [KEPT])


def test_persisting_cache_is_clamped_and_free(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("cuCtxSetLimit", L2_PERSISTING, 1 << 40) == 0
    assert limit(probe, L2_PERSISTING) == 48 * MIB
    assert node.gpu()["used"] == CONTEXT


def test_limits_need_a_context(node: Node) -> None:
    probe = node.probe()
    assert probe.code("cuCtxSetLimit", HEAP, 1) == 3
    assert probe.code("cuInit", 0) == 0
    assert probe.code("cuCtxSetLimit", HEAP, 1) == 201
    assert probe.call("cuCtxGetLimit", {"out": KEPT}, HEAP).outputs == [KEPT]
    probe.retain()
    assert probe.code("cuCtxGetLimit", 0, HEAP) == 1


@pytest.mark.parametrize("name", ["cuGLCtxCreate_v2", "cuGLCtxCreate", "cuVDPAUCtxCreate_v2"])
def test_contexts_for_graphics_are_not_supported(node: Node, name: str) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code(name, {"out": KEPT}, 0, 0, 0, 0) == 801
    assert node.gpu()["used"] == CONTEXT


def test_a_graphs_memory_figures_can_be_asked(node: Node) -> None:
    probe = node.probe()
    probe.start()
    for attribute in range(4):
        assert probe.call("cuDeviceGetGraphMemAttribute", 0, attribute, {"out": KEPT}).outputs == [0]
    assert probe.code("cuDeviceGetGraphMemAttribute", 0, 4, {"out": KEPT}) == 1
    assert probe.code("cuDeviceGetGraphMemAttribute", 1, 0, {"out": KEPT}) == 101
    assert [probe.code("cuDeviceSetGraphMemAttribute", 0, 1, {"out": value}) for value in (0, 1)] == [0, 1]
    assert probe.code("cuDeviceSetGraphMemAttribute", 0, 0, {"out": 0}) == 1
    assert probe.code("cuDeviceGraphMemTrim", 0) == 0
    assert probe.code("cuDeviceGraphMemTrim", 9) == 101
