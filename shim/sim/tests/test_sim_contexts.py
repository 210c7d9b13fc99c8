# SPDX-License-Identifier: Apache-2.0
"""Green contexts, usage counts, and processes that leave the GPU for a while."""

import struct
from typing import Any

import pytest

from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, Probe
from shim.sim.tests.structs import DESCRIPTOR, memory_prop, raw

KEPT = 0xABCDEF
SM, WORKQUEUE = 1, 10000
RESOURCE = 144
RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
ILLEGAL_STATE = 401


def counts(text: str) -> tuple[int, int, int, int]:
    """Type, multiprocessors, least part and step of a CUdevResource."""
    data = bytes.fromhex(text)
    kind, count, least, step = struct.unpack_from("<i92xIII", data)
    return kind, count, least, step


def whole(probe: Probe, device: int = 0) -> str:
    answer = probe.call("cuDeviceGetDevResource", device, raw(b"\0" * RESOURCE), SM)
    assert answer.code == 0
    text: str = answer.outputs[0]
    return text


def green(probe: Probe, resource: str) -> int:
    described = probe.call("cuDevResourceGenerateDesc", {"out": 0}, {"bytes": resource}, 1)
    assert described.code == 0
    made = probe.call("cuGreenCtxCreate", {"out": 0}, described.outputs[0], 0, 1)
    assert made.code == 0
    context: int = made.outputs[0]
    return context


@pytest.mark.parametrize(
    ("profile", "total", "least", "step"), [("l4", 58, 4, 2), ("h100", 132, 8, 8), ("t4", 40, 2, 2)]
)
def test_multiprocessors_can_be_split(
    empty_node: Node, profile: str, total: int, least: int, step: int
) -> None:
    empty_node.init(profile)
    probe = empty_node.probe()
    assert probe.code("cuInit", 0) == 0
    resource = whole(probe)
    assert counts(resource) == (SM, total, least, step)
    part = -(-max(10, least) // step) * step
    asked = probe.call("cuDevSmResourceSplitByCount", 0, {"out": KEPT}, {"bytes": resource}, 0, 0, 10)
    assert (asked.code, asked.outputs[0] & 0xFFFFFFFF) == (0, total // part)
    answer = probe.call(
        "cuDevSmResourceSplitByCount",
        raw(b"\0" * RESOURCE * 2),
        {"out": 2},
        {"bytes": resource},
        raw(b"\0" * RESOURCE),
        0,
        10,
    )
    assert answer.code == 0
    both, _, _, rest = answer.outputs
    assert [counts(both[i * 2 * RESOURCE :])[1] for i in (0, 1)] == [part, part]
    assert counts(rest)[1] == total - 2 * part
    for flags, count in ((8, 10), (0, total + 1)):
        bad = probe.call(
            "cuDevSmResourceSplitByCount", 0, {"out": KEPT}, {"bytes": resource}, 0, flags, count
        )
        assert (bad.code, bad.outputs[0]) == (1, KEPT)


def test_a_green_context_retains_the_primary_one(node: Node) -> None:
    probe = node.probe()
    assert probe.code("cuInit", 0) == 0
    first, second = green(probe, whole(probe)), green(probe, whole(probe))
    assert node.gpu()["used"] == CONTEXT, "both share the primary context"
    context = probe.call("cuCtxFromGreenCtx", {"out": 0}, first).outputs[0]
    assert probe.code("cuCtxSetCurrent", context) == 0
    probe.allocate(10 * MIB)
    stream = probe.call("cuGreenCtxStreamCreate", {"out": 0}, first, 1, 0)
    assert stream.code == 0
    assert probe.code("cuStreamSynchronize", stream.outputs[0]) == 0
    assert probe.code("cuGreenCtxStreamCreate", {"out": 0}, first, 0, 0) == 1
    assert probe.code("cuGreenCtxDestroy", first) == 0
    assert node.gpu()["used"] == CONTEXT + 10 * MIB
    assert probe.code("cuGreenCtxDestroy", first) == 1
    assert probe.code("cuGreenCtxDestroy", second) == 0
    assert node.gpu()["used"] == 0
    assert probe.code("cuCtxFromGreenCtx", {"out": 0}, second) == 1


def test_green_contexts_are_checked(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    assert probe.code("cuInit", 0) == 0
    described = probe.call("cuDevResourceGenerateDesc", {"out": 0}, {"bytes": whole(probe, 1)}, 1).outputs[0]
    assert probe.code("cuGreenCtxCreate", {"out": KEPT}, described, 0, 1) == 101, "of another device"
    assert probe.code("cuGreenCtxCreate", {"out": KEPT}, described, 1, 2) == 1
    assert probe.code("cuGreenCtxCreate", {"out": KEPT}, KEPT, 1, 1) == 1
    assert probe.code("cuDevResourceGenerateDesc", {"out": KEPT}, raw(b"\0" * RESOURCE), 1) == 1
    twice = whole(probe) + whole(probe)
    assert probe.code("cuDevResourceGenerateDesc", {"out": KEPT}, {"bytes": twice}, 2) == 1, (
        "more than there are"
    )
    assert probe.code("cuDeviceGetDevResource", 0, raw(b"\0" * RESOURCE), WORKQUEUE) == 914
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [0, 0]


def test_a_full_gpu_refuses_a_green_context(node: Node) -> None:
    filler = node.probe()
    filler.start()
    filler.allocate(L4_CAPACITY - CONTEXT - PAGE)
    probe = node.probe()
    assert probe.code("cuInit", 0) == 0
    described = probe.call("cuDevResourceGenerateDesc", {"out": 0}, {"bytes": whole(probe)}, 1).outputs[0]
    answer = probe.call("cuGreenCtxCreate", {"out": KEPT}, described, 0, 1)
    assert (answer.code, answer.outputs) == (2, [KEPT])


def test_the_last_to_detach_destroys(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("cuCtxAttach", {"out": KEPT}, 0) == 201, "a primary context has no usage count"
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    assert probe.call("cuCtxAttach", {"out": 0}, 0).outputs == [made]
    assert probe.code("cuCtxDetach", made) == 0
    assert node.gpu()["used"] == 2 * CONTEXT
    assert probe.code("cuCtxDetach", KEPT) == 201
    assert probe.code("cuCtxDetach", made) == 0
    assert node.gpu()["used"] == CONTEXT


def state(probe: Probe) -> int:
    answer = probe.call("cuCheckpointProcessGetState", probe.own_pid, {"out": 0})
    assert answer.code == 0
    now: int = answer.outputs[0]
    return now


def test_a_checkpoint_takes_memory_off_the_gpu_and_back(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    address = probe.allocate(1000 * MIB)
    probe.allocate(100)
    pid = probe.own_pid
    assert probe.code("cuCheckpointProcessCheckpoint", pid, 0) == ILLEGAL_STATE
    assert probe.code("cuCheckpointProcessLock", pid, 0) == 0
    assert state(probe) == LOCKED
    assert probe.code("cuCheckpointProcessCheckpoint", pid, 0) == 0
    assert state(probe) == CHECKPOINTED
    assert node.gpu()["used"] == 0
    assert node.group("g")["requested"] == 0
    other = node.probe()
    other.start()
    filler = other.allocate(L4_CAPACITY - 2 * CONTEXT)
    assert other.listed() == [(other.popen.pid, L4_CAPACITY - CONTEXT)], "who is away is not listed"
    assert probe.code("cuCheckpointProcessRestore", pid, 0) == 2, "no room to come back"
    assert state(probe) == CHECKPOINTED
    assert other.code("cuMemFree_v2", filler) == 0
    assert probe.code("cuCheckpointProcessUnlock", pid, 0) == ILLEGAL_STATE
    assert probe.code("cuCheckpointProcessRestore", pid, 0) == 0
    assert node.group("g")["used"] == CONTEXT + 1000 * MIB + PAGE
    assert node.group("g")["requested"] == 1000 * MIB + 100
    assert probe.code("cuCheckpointProcessUnlock", pid, 0) == 0
    assert state(probe) == RUNNING
    assert probe.code("cuMemFree_v2", address) == 0
    assert node.group("g")["used"] == CONTEXT + PAGE


def test_a_locked_process_waits(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("cuCheckpointProcessLock", probe.own_pid, 0) == 0
    assert probe.code("begin_in_thread", "cuDeviceGetCount", {"out": 0}) == 0
    assert probe.call("thread_has_ended").outputs == [False]
    assert probe.code("cuCheckpointProcessUnlock", probe.own_pid, 0) == 0
    assert probe.call("finish_thread").outputs == [1]


def checkpoint_args(custom: int = 0, reserved: int = 0) -> Any:
    return raw(struct.pack("<QQ", custom, reserved).ljust(64, b"\0"))


def test_checkpoints_that_cannot_be(node: Node) -> None:
    probe = node.probe()
    other = node.probe()
    probe.start()
    other.start()
    assert probe.code("cuCheckpointProcessLock", other.own_pid, 0) == 801
    assert probe.code("cuCheckpointProcessLock", probe.own_pid, raw(b"\1" * 64)) == 1
    shared = probe.call("cuMemCreate", {"out": 0}, PAGE, memory_prop(handles=DESCRIPTOR), 0)
    assert shared.code == 0
    assert probe.code("cuCheckpointProcessLock", probe.own_pid, 0) == 0
    assert probe.code("cuCheckpointProcessCheckpoint", probe.own_pid, 0) == 801, "others may hold it"
    assert probe.code("cuCheckpointProcessCheckpoint", probe.own_pid, checkpoint_args(reserved=1)) == 1
    assert probe.code("cuCheckpointProcessUnlock", probe.own_pid, 0) == 0
    assert probe.code("cuMemRelease", shared.outputs[0]) == 0
    assert probe.code("cuCheckpointProcessLock", probe.own_pid, 0) == 0
    assert probe.code("cuCheckpointProcessCheckpoint", probe.own_pid, checkpoint_args(custom=1)) == 801
    assert probe.code("cuCheckpointProcessCheckpoint", probe.own_pid, 0) == 0
    probe.kill()
    assert node.gpu()["used"] == CONTEXT
