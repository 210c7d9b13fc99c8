# SPDX-License-Identifier: Apache-2.0
"""Memory of others, and what pointers tell: nothing of it is counted a second time."""

import os
import struct
from typing import Any

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, PAGE, Node, Probe
from shim.sim.tests.structs import DESCRIPTOR, access, memory_prop, pool_props, raw

KEPT = 0xABCDEF
SIZE = 50 * MIB
LAZY_PEERS = 1


class Exporter:
    def __init__(self, node: Node) -> None:
        self.probe = node.probe(group="exporter")
        self.probe.start()
        self.address = self.probe.allocate(SIZE)
        answer = self.probe.call("cuIpcGetMemHandle", {"bytes": "00" * 64}, self.address)
        assert answer.code == 0
        self.handle: str = answer.outputs[0]


def open_handle(probe: Probe, handle: str, name: str = "cuIpcOpenMemHandle_v2") -> Any:
    return probe.call(name, {"out": KEPT}, {"value": handle}, LAZY_PEERS)


@pytest.mark.parametrize("name", ["cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"])
def test_an_opened_handle_is_not_new_memory(node: Node, name: str) -> None:
    exporter = Exporter(node)
    probe = node.probe(group="importer")
    probe.start()
    first = open_handle(probe, exporter.handle, name)
    again = open_handle(probe, exporter.handle, name)
    assert (first.code, again.code) == (0, 0)
    assert first.outputs == again.outputs, "one mapping, counted twice"
    assert node.gpu()["used"] == 2 * CONTEXT + SIZE
    assert node.group("importer")["used"] == CONTEXT
    address = first.outputs[0]
    assert probe.code("cuMemsetD8_v2", address + SIZE - 1, 1, 1) == 0
    assert probe.code("cuMemFree_v2", address) == 1
    assert [probe.code("cuIpcCloseMemHandle", address) for _ in range(3)] == [0, 0, 1]
    assert probe.code("cuMemsetD8_v2", address, 1, 1) == 1
    assert node.group("exporter")["used"] == CONTEXT + SIZE


def test_handles_that_cannot_be_opened(empty_node: Node) -> None:
    empty_node.init("l4:2")
    exporter = Exporter(empty_node)
    assert open_handle(exporter.probe, exporter.handle).code == 201, "one's own"
    probe = empty_node.probe()
    probe.start(1)
    answer = open_handle(probe, exporter.handle)
    assert (answer.code, answer.outputs) == (205, [KEPT]), "another GPU"
    probe.retain(0)
    assert open_handle(probe, "00" * 64).code == 400
    assert probe.code("cuIpcOpenMemHandle_v2", {"out": 0}, {"value": exporter.handle}, 0) == 1
    exporter.probe.kill()
    assert open_handle(probe, exporter.handle).code == 400, "its process has ended"


def test_only_plain_allocations_have_handles(node: Node) -> None:
    probe = node.probe()
    probe.start()
    pool = probe.call("cuMemAllocAsync", {"out": 0}, 1, 0).outputs[0]
    managed = probe.call("cuMemAllocManaged", {"out": 0}, PAGE, 1).outputs[0]
    for address in (0, KEPT, pool, managed):
        answer = probe.call("cuIpcGetMemHandle", {"bytes": "ab" * 64}, address)
        assert (answer.code, answer.outputs) == (1, ["ab" * 64])
    address = probe.allocate(PAGE)
    first = probe.call("cuIpcGetMemHandle", {"bytes": "00" * 64}, address).outputs
    assert probe.code("cuMemFree_v2", address) == 0
    assert probe.allocate(PAGE) == address
    assert probe.call("cuIpcGetMemHandle", {"bytes": "00" * 64}, address).outputs != first, "a unique handle"


def test_opened_handles_end_with_their_context(node: Node) -> None:
    exporter = Exporter(node)
    probe = node.probe()
    probe.start()
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    address = open_handle(probe, exporter.handle).outputs[0]
    assert probe.code("cuCtxDestroy_v2", made) == 0
    probe.retain()
    assert probe.code("cuIpcCloseMemHandle", address) == 1
    assert open_handle(probe, exporter.handle).code == 0


def external(probe: Probe, size: int, kind: int = 1, descriptor: int | None = None, flags: int = 0) -> Any:
    given = probe.call("pipe_end").outputs[0] if descriptor is None else descriptor
    about = struct.pack("<i4xi12xQI64x4x", kind, given, size, flags)
    return probe.call("cuImportExternalMemory", {"out": KEPT}, raw(about))


def test_external_memory_is_not_counted(node: Node) -> None:
    probe = node.probe()
    probe.start()
    answer = external(probe, SIZE)
    assert answer.code == 0
    memory = answer.outputs[0]
    buffer = raw(struct.pack("<QQI68x", PAGE, SIZE - PAGE, 0))
    mapped = probe.call("cuExternalMemoryGetMappedBuffer", {"out": 0}, memory, buffer)
    assert mapped.code == 0
    too_much = raw(struct.pack("<QQI68x", PAGE, SIZE, 0))
    assert probe.code("cuExternalMemoryGetMappedBuffer", {"out": 0}, memory, too_much) == 1
    array = raw(
        struct.pack("<Q", 0) + struct.pack("<QQQiII4x", 100, 100, 0, 0x20, 1, 0) + struct.pack("<I68x", 2)
    )
    mipmap = probe.call("cuExternalMemoryGetMappedMipmappedArray", {"out": 0}, memory, array)
    assert mipmap.code == 0
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemsetD8_v2", mapped.outputs[0], 0, SIZE - PAGE) == 0
    assert [probe.code("cuMemFree_v2", mapped.outputs[0]) for _ in range(2)] == [0, 1]
    assert probe.code("cuMipmappedArrayDestroy", mipmap.outputs[0]) == 0
    assert [probe.code("cuDestroyExternalMemory", memory) for _ in range(2)] == [0, 400]
    assert node.gpu()["used"] == CONTEXT


def test_external_memory_takes_the_descriptor(node: Node) -> None:
    probe = node.probe()
    probe.start()
    for code, size, kind, descriptor, flags in [
        (1, 0, 1, None, 0),
        (1, SIZE, 1, 999, 0),
        (1, SIZE, 1, None, 4),
        (801, SIZE, 2, None, 0),
        (0, SIZE, 1, None, 1),
    ]:
        assert external(probe, size, kind, descriptor, flags).code == code
    given = probe.call("pipe_end").outputs[0]
    assert external(probe, SIZE, descriptor=given).code == 0
    assert not os.path.exists(f"/proc/{probe.popen.pid}/fd/{given}")


CONTEXT_OF, TYPE, DEVICE_POINTER, HOST_POINTER, ID, MANAGED, ORDINAL, IPC = 1, 2, 3, 4, 7, 8, 9, 10
START, RANGE, MAPPED, HANDLES, POOL, MAPPING, BASE = 11, 12, 13, 14, 17, 18, 19
WIDTH = {TYPE: 4, ORDINAL: 4, MANAGED: 1, IPC: 1, MAPPED: 1}


def told(probe: Probe, address: int, which: int) -> int:
    answer = probe.call("cuPointerGetAttribute", raw(b"\0" * 8), which, address)
    assert answer.code == 0
    return int.from_bytes(bytes.fromhex(answer.outputs[0])[: WIDTH.get(which, 8)], "little")


def test_pointers_tell_what_they_are(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    context = probe.start(1)
    linear = probe.allocate(SIZE)
    managed = probe.call("cuMemAllocManaged", {"out": 0}, PAGE, 1).outputs[0]
    pinned = probe.call("cuMemHostAlloc", {"out": 0}, PAGE, 0).outputs[0]
    own = probe.call("cuMemPoolCreate", {"out": 0}, pool_props(handles=DESCRIPTOR)).outputs[0]
    pooled = probe.call("cuMemAllocFromPoolAsync", {"out": 0}, 3000, own, 0).outputs[0]
    inside = [(linear, SIZE), (managed, PAGE), (pinned, PAGE), (pooled, 3000)]
    for address, size in inside:
        assert [told(probe, address + 700, which) for which in (START, RANGE)] == [address, size]
        assert told(probe, address + 700, DEVICE_POINTER) == address + 700
        assert told(probe, address, MAPPED) == 1
    assert [told(probe, address, CONTEXT_OF) for address, _ in inside] == [context, context, context, 0]
    assert [told(probe, address, TYPE) for address, _ in inside] == [2, 2, 1, 2]
    assert [told(probe, address, MANAGED) for address, _ in inside] == [0, 1, 0, 0]
    assert [told(probe, address, ORDINAL) for address, _ in inside] == [1, 1, 1, 0]
    assert [told(probe, address, IPC) for address, _ in inside] == [1, 0, 0, 0]
    assert [told(probe, address, POOL) for address, _ in inside] == [0, 0, 0, own]
    assert [told(probe, address, HANDLES) for address, _ in inside] == [0, 0, 0, DESCRIPTOR]
    assert told(probe, managed, HOST_POINTER) == managed
    assert probe.code("cuPointerGetAttribute", {"out": KEPT}, HOST_POINTER, linear) == 1
    assert len({told(probe, address, ID) for address, _ in inside}) == 4


def test_mapped_memory_tells_mapping_and_range(node: Node) -> None:
    probe = node.probe()
    probe.start()
    base = probe.call("cuMemAddressReserve", {"out": 0}, 10 * PAGE, 0, 0, 0).outputs[0]
    handle = probe.call("cuMemCreate", {"out": 0}, 2 * PAGE, memory_prop(handles=DESCRIPTOR), 0).outputs[0]
    assert probe.code("cuPointerGetAttribute", {"out": KEPT}, TYPE, base) == 1
    assert probe.code("cuMemMap", base + PAGE, 2 * PAGE, 0, handle, 0) == 0
    assert probe.code("cuMemSetAccess", base + PAGE, 2 * PAGE, access(), 1) == 0
    asked = [told(probe, base + 2 * PAGE, which) for which in (START, RANGE, BASE, MAPPING, HANDLES, TYPE)]
    assert asked == [base, 10 * PAGE, base + PAGE, 2 * PAGE, DESCRIPTOR, 2]


def test_many_attributes_at_once_never_fail(node: Node) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call("ask_pointer", KEPT, [TYPE, ORDINAL, MANAGED, START])
    assert (answer.code, answer.outputs) == (0, [0, 0xFFFFFFFE, 0, 0])
    address = probe.allocate(PAGE)
    answer = probe.call("ask_pointer", address + 1, [TYPE, ORDINAL, MANAGED, START])
    assert (answer.code, answer.outputs) == (0, [2, 0, 0, address])
    assert probe.code("cuPointerSetAttribute", {"out": 1}, 6, address) == 0
    assert probe.code("cuPointerSetAttribute", {"out": 1}, TYPE, address) == 1
    assert probe.code("cuPointerGetAttribute", {"out": KEPT}, 99, address) == 1
    assert probe.code("cuPointerGetAttribute", {"out": KEPT}, TYPE, KEPT) == 1
