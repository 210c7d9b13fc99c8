# SPDX-License-Identifier: Apache-2.0
"""Exact error codes, outputs untouched on failure, and which devices are visible."""

from collections.abc import Callable

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, PAGE, Node

KEPT = 0xABCDEF

BEFORE_INIT = [
    ("cuDeviceGetCount", {"out": KEPT}),
    ("cuDeviceGet", {"out": KEPT}, 0),
    ("cuCtxGetCurrent", {"out": KEPT}),
    ("cuDevicePrimaryCtxRetain", {"out": KEPT}, 0),
    ("cuMemAlloc_v2", {"out": KEPT}, 1),
    ("cuMemGetInfo_v2", {"out": KEPT}, {"out": KEPT}),
    ("cuStreamCreate", {"out": KEPT}, 0),
]

WITHOUT_CONTEXT = [
    ("cuMemAlloc_v2", {"out": KEPT}, 1),
    ("cuMemFree_v2", 4096),
    ("cuMemGetInfo_v2", {"out": KEPT}, {"out": KEPT}),
    ("cuCtxGetDevice", {"out": KEPT}),
    ("cuCtxPopCurrent_v2", {"out": KEPT}),
    ("cuCtxSynchronize",),
    ("cuMemHostAlloc", {"out": KEPT}, 1, 0),
    ("cuStreamSynchronize", 0),
    ("cuEventCreate", {"out": KEPT}, 0),
]

INVALID_VALUE = [
    ("cuMemAlloc_v2", {"out": KEPT}, 0),
    ("cuMemAlloc_v2", 0, 1),
    ("cuMemFree_v2", 0),
    ("cuMemFree_v2", 0x1234),
    ("cuMemFree_v2", 0xFFFF_FFFF_FFFF_F000),
    ("cuMemAllocPitch_v2", {"out": KEPT}, {"out": KEPT}, 10, 10, 3),
    ("cuMemAllocPitch_v2", {"out": KEPT}, {"out": KEPT}, 0, 10, 4),
    ("cuMemAllocManaged", {"out": KEPT}, 1, 0),
    ("cuMemcpyHtoD_v2", 0x1234, {"bytes": "00"}, 1),
    ("cuMemsetD32_v2", 0x1234, 0, 1),
    ("cuDeviceGetAttribute", {"out": KEPT}, 100000, 0),
    ("cuCtxCreate_v2", {"out": KEPT}, 0xF0000000, 0),
    ("cuDeviceGetCount", 0),
    ("cuGetErrorName", 424242, {"out": KEPT}),
]


def outputs_of(request_: tuple[object, ...]) -> list[object]:
    return [KEPT if "out" in part else part["bytes"] for part in request_ if isinstance(part, dict)]


def name_of(request_: tuple[object, ...]) -> str:
    return "-".join(str(part) for part in request_ if not isinstance(part, dict))


@pytest.mark.parametrize("request_", BEFORE_INIT, ids=name_of)
def test_nothing_works_before_init(node: Node, request_: tuple[object, ...]) -> None:
    answer = node.probe().call(*request_)
    assert (answer.code, answer.outputs) == (3, outputs_of(request_))


@pytest.mark.parametrize("request_", WITHOUT_CONTEXT, ids=name_of)
def test_memory_needs_a_context(node: Node, request_: tuple[object, ...]) -> None:
    probe = node.probe()
    assert probe.code("cuInit", 0) == 0
    answer = probe.call(*request_)
    assert (answer.code, answer.outputs) == (201, outputs_of(request_))


@pytest.mark.parametrize("request_", INVALID_VALUE, ids=name_of)
def test_invalid_values_change_nothing(node: Node, request_: tuple[object, ...]) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call(*request_)
    assert (answer.code, answer.outputs) == (1, outputs_of(request_))
    assert node.gpu()["used"] == CONTEXT


def test_double_free_is_an_invalid_value(node: Node) -> None:
    probe = node.probe()
    probe.start()
    address = probe.allocate(PAGE)
    assert probe.code("cuMemFree_v2", address + 512) == 1
    assert probe.code("cuMemFree_v2", address) == 0
    assert probe.code("cuMemFree_v2", address) == 1
    assert node.gpu()["used"] == CONTEXT


def test_contexts_are_current_per_thread(node: Node) -> None:
    probe = node.probe()
    context = probe.start()
    assert probe.call("cuCtxGetCurrent", {"out": 0}).outputs == [context]
    assert probe.call("in_thread", "cuCtxGetCurrent", {"out": 0}).outputs == [0]
    assert probe.code("in_thread", "cuMemAlloc_v2", {"out": 0}, 1) == 201
    assert probe.call("cuCtxPopCurrent_v2", {"out": 0}).outputs == [context]
    assert probe.code("cuCtxPushCurrent_v2", context) == 0
    assert probe.code("cuCtxSetCurrent", 0) == 0
    assert probe.code("cuCtxGetDevice", {"out": 0}) == 201


def test_a_destroyed_context_is_noticed(node: Node) -> None:
    probe = node.probe()
    context = probe.start()
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    assert probe.code("cuCtxPushCurrent_v2", context) == 0
    assert probe.code("cuCtxDestroy_v2", made) == 0
    assert probe.code("cuCtxDestroy_v2", made) == 201
    assert probe.code("cuCtxDestroy_v2", context) == 201, "a primary context is released, not destroyed"
    assert probe.code("cuCtxSetCurrent", made) == 201
    assert probe.code("cuCtxPopCurrent_v2", {"out": 0}) == 0
    assert probe.code("cuMemAlloc_v2", {"out": KEPT}, 1) == 709


def test_streams_and_events_are_checked(node: Node) -> None:
    probe = node.probe()
    probe.start()
    stream = probe.call("cuStreamCreate", {"out": 0}, 1).outputs[0]
    first = probe.call("cuEventCreate", {"out": 0}, 0).outputs[0]
    second = probe.call("cuEventCreate", {"out": 0}, 0).outputs[0]
    assert probe.code("cuEventElapsedTime", {"out": KEPT}, first, second) == 400
    assert [probe.code("cuEventRecord", event, stream) for event in (first, second)] == [0, 0]
    assert probe.code("cuEventElapsedTime", {"out": KEPT}, first, second) == 0
    assert probe.code("cuStreamSynchronize", stream) == 0
    assert [probe.code("cuStreamDestroy_v2", stream) for _ in range(2)] == [0, 400]
    assert [probe.code("cuEventDestroy_v2", first) for _ in range(2)] == [0, 400]


def test_not_implemented_is_not_supported(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("cuCoredumpGetAttribute", 1, {"out": 0}, {"out": 8}) == 801
    assert probe.code("nvmlDeviceGetFanSpeed", 0, {"out": 0}) == 3


def test_no_node_is_no_device(empty_node: Node) -> None:
    probe = empty_node.probe()
    assert probe.code("cuInit", 0) == 100
    assert probe.code("cuDeviceGetCount", {"out": 0}) == 3
    assert probe.code("nvmlInit_v2") == 9
    assert probe.call("cuDriverGetVersion", {"out": 0}).outputs == [13020], "the newest there is"


def test_another_layout_is_refused(node: Node) -> None:
    state = bytearray((node.root / "state").read_bytes())
    state[8] ^= 0xFF
    (node.root / "state").write_bytes(state)
    probe = node.probe()
    assert probe.code("cuInit", 0) == 803
    assert probe.code("nvmlInit_v2") == 18
    shown = node.tool("books")
    assert shown.returncode == 1
    assert "another version" in shown.stderr


def uuid(index: int) -> Callable[[list[str]], str]:
    return lambda uuids: uuids[index]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (lambda _: "1", [1]),
        (lambda _: "2,0", [2, 0]),
        (lambda _: "0,7,1", [0]),
        (lambda _: "1,-1,2", [1]),
        (lambda _: "0,0", [0]),
        (uuid(2), [2]),
        (lambda uuids: f"{uuids[1][:12]},{uuids[0]}", [1, 0]),
        (lambda uuids: uuids[1].upper(), [1]),
        (lambda uuids: f"{uuids[1]},GPU-nonsense,0", [1]),
        (lambda _: " 1 , 2", [1, 2]),
    ],
    ids=[
        "index",
        "order",
        "out-of-range",
        "minus-one",
        "twice",
        "uuid",
        "prefix",
        "upper",
        "unknown",
        "spaces",
    ],
)
def test_cuda_visible_devices(
    empty_node: Node, setting: Callable[[list[str]], str], expected: list[int]
) -> None:
    empty_node.init("l4:3")
    uuids = [gpu["uuid"] for gpu in empty_node.books()["gpus"]]
    probe = empty_node.probe(visible=setting(uuids))
    assert probe.code("cuInit", 0) == 0
    assert probe.call("cuDeviceGetCount", {"out": 0}).outputs == [len(expected)]
    seen = [
        probe.call("cuDeviceGetUuid_v2", {"bytes": "00" * 16}, i).outputs[0] for i in range(len(expected))
    ]
    assert seen == [uuids[index].removeprefix("GPU-").replace("-", "") for index in expected]


@pytest.mark.parametrize("setting", ["", "-1", "9", "GPU-", "GPU-0000"], ids=repr)
def test_no_visible_device_is_no_device(node: Node, setting: str) -> None:
    assert node.probe(visible=setting).code("cuInit", 0) == 100


def test_only_gpus_with_a_marker_are_there(empty_node: Node) -> None:
    empty_node.init("l4:2")
    uuids = [gpu["uuid"] for gpu in empty_node.books()["gpus"]]
    (empty_node.root / "dev" / uuids[0]).unlink()
    probe = empty_node.probe()
    assert probe.code("cuInit", 0) == 0
    assert probe.call("cuDeviceGetCount", {"out": 0}).outputs == [1]
    assert probe.code("nvmlInit_v2") == 0
    assert probe.call("nvmlDeviceGetCount_v2", {"out": 0}).outputs == [1]
    device = probe.call("nvmlDeviceGetHandleByIndex_v2", 0, {"out": 0}).outputs[0]
    assert probe.call("nvmlDeviceGetUUID", device, {"text": 80}, 80).outputs == [uuids[1]]
    assert probe.call("nvmlDeviceGetMinorNumber", device, {"out": 0}).outputs == [1]
    assert probe.code("nvmlDeviceGetHandleByUUID", uuids[0], {"out": 0}) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init",), "needs --gpu"),
        (("init", "--gpu", "riva128"), "no such profile; there are a100-40gb"),
        (("init", "--gpu", "l4:17"), "1 to 16 GPUs"),
        (("init", "--gpu", "l4", "--context-mib", "3"), "even number of MiB"),
        (("cdi",), "--lib-dir"),
        (("frobnicate",), "no command frobnicate"),
    ],
    ids=["no-gpu", "profile", "count", "context", "cdi", "command"],
)
def test_tool_refuses_what_makes_no_sense(empty_node: Node, arguments: tuple[str, ...], message: str) -> None:
    answer = empty_node.tool(*arguments)
    assert answer.returncode == 2
    assert message in answer.stderr


def test_init_keeps_a_node_and_refuses_another(node: Node) -> None:
    probe = node.probe()
    probe.start()
    node.init("l4")
    assert node.gpu()["used"] == CONTEXT
    other = node.tool("init", "--gpu", "h100", "--node", "node-a")
    assert other.returncode == 1
    assert "another node" in other.stderr
    probe.allocate(5 * MIB)
    assert node.gpu()["used"] == CONTEXT + 6 * MIB
