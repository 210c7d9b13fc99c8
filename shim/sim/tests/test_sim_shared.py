# SPDX-License-Identifier: Apache-2.0
"""Memory that processes share: counted once, and until the last of them lets go."""

from pathlib import Path

import pytest

from shim.sim.tests import structs
from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node
from shim.sim.tests.structs import DESCRIPTOR, memory_prop, pool_props
from shim.sim.tests.test_sim_vmm import mapped

SIZE = 100 * MIB
STEP = 32 * MIB


class Pair:
    """An exporter and an importer in groups of their own, and a way for descriptors between them."""

    def __init__(self, node: Node, mailbox: Path) -> None:
        self.node = node
        self.exporter = node.probe(group="exporter")
        self.importer = node.probe(group="importer")
        self.exporter.start()
        self.importer.start()
        self.mailbox = str(mailbox)
        self.importer.code("open_mailbox", self.mailbox)

    def used(self) -> int:
        """Bytes of the GPU beside the contexts of those who live."""
        alive = [process for process in self.node.books()["processes"] if process["alive"]]
        used: int = self.node.gpu()["used"] - CONTEXT * len(alive)
        return used

    def memory(self) -> int:
        answer = self.exporter.call("cuMemCreate", {"out": 0}, SIZE, memory_prop(handles=DESCRIPTOR), 0)
        assert answer.code == 0
        handle: int = answer.outputs[0]
        return handle

    def send(self, handle: int) -> None:
        answer = self.exporter.call("cuMemExportToShareableHandle", {"out": 0}, handle, DESCRIPTOR, 0)
        assert answer.code == 0
        self.exporter.code("post_descriptor", self.mailbox, answer.outputs[0])

    def receive(self) -> int:
        """Import what was sent; the descriptor is closed."""
        descriptor = self.importer.call("collect_descriptor").outputs[0]
        answer = self.importer.call("cuMemImportFromShareableHandle", {"out": 0}, descriptor, DESCRIPTOR)
        assert answer.code == 0
        self.importer.code("close_descriptor", descriptor)
        handle: int = answer.outputs[0]
        return handle


@pytest.fixture
def pair(node: Node, tmp_path: Path) -> Pair:
    return Pair(node, tmp_path / "mailbox")


def test_an_import_is_not_new_memory(pair: Pair) -> None:
    handle = pair.memory()
    pair.send(handle)
    imported = pair.receive()
    address = mapped(pair.importer, imported, SIZE)
    assert pair.used() == SIZE
    assert pair.node.group("importer")["used"] == CONTEXT
    assert pair.node.group("exporter")["used"] == CONTEXT + SIZE
    assert pair.node.group("exporter")["requested"] == SIZE
    prop = pair.importer.call("cuMemGetAllocationPropertiesFromHandle", structs.raw(b"\0" * 32), imported)
    assert prop.outputs[0] == memory_prop(handles=DESCRIPTOR)["bytes"]
    assert pair.importer.code("cuMemUnmap", address, SIZE) == 0
    assert pair.importer.code("cuMemRelease", imported) == 0
    assert pair.used() == SIZE
    assert pair.exporter.code("cuMemRelease", handle) == 0
    assert pair.used() == 0


def test_released_by_its_maker_it_lives_with_the_importer(pair: Pair) -> None:
    handle = pair.memory()
    pair.send(handle)
    imported = pair.receive()
    assert pair.exporter.code("cuMemRelease", handle) == 0
    assert pair.used() == SIZE
    (shared,) = pair.node.books()["shared"]
    assert (shared["kind"], shared["used"], shared["pid"]) == ("memory", SIZE, 0)
    assert pair.exporter.listed() == sorted(
        [(pair.exporter.popen.pid, CONTEXT), (pair.importer.popen.pid, CONTEXT)]
    )
    address = mapped(pair.importer, imported, SIZE)
    assert pair.importer.code("cuMemRelease", imported) == 0
    assert pair.used() == SIZE
    assert pair.importer.code("cuMemUnmap", address, SIZE) == 0
    assert pair.used() == 0
    assert pair.node.books()["shared"] == []


def test_a_descriptor_in_flight_keeps_memory(pair: Pair) -> None:
    handle = pair.memory()
    pair.send(handle)
    assert pair.exporter.code("cuMemRelease", handle) == 0
    assert pair.used() == SIZE
    pair.exporter.kill()
    assert pair.used() == SIZE
    assert pair.importer.code("cuMemRelease", pair.receive()) == 0
    assert pair.used() == 0


def test_killed_exporter_leaves_what_others_hold(pair: Pair) -> None:
    kept, lost = pair.memory(), pair.memory()
    pair.send(kept)
    imported = pair.receive()
    assert lost
    assert pair.used() == 2 * SIZE
    pair.exporter.kill()
    assert pair.used() == SIZE
    assert pair.node.group("exporter")["used"] == SIZE, "it stays with the group that made it"
    assert pair.importer.code("cuMemRelease", imported) == 0
    assert pair.used() == 0
    assert pair.node.group("exporter")["used"] == 0


def test_killed_importer_leaves_the_exporter_alone(pair: Pair) -> None:
    handle = pair.memory()
    pair.send(handle)
    mapped(pair.importer, pair.receive(), SIZE)
    pair.importer.kill()
    assert pair.used() == SIZE
    assert pair.exporter.code("cuMemRelease", handle) == 0
    assert pair.used() == 0


def test_both_killed_leave_nothing_and_room_at_once(pair: Pair) -> None:
    pair.send(pair.memory())
    mapped(pair.importer, pair.receive(), SIZE)
    survivor = pair.node.probe()
    survivor.start()
    pair.exporter.kill()
    pair.importer.kill()
    survivor.allocate(L4_CAPACITY - CONTEXT)
    assert pair.node.gpu()["peak"] == L4_CAPACITY
    assert pair.node.books()["shared"] == []


def test_a_process_can_import_its_own_export(pair: Pair) -> None:
    handle = pair.memory()
    answer = pair.exporter.call("cuMemExportToShareableHandle", {"out": 0}, handle, DESCRIPTOR, 0)
    descriptor = answer.outputs[0]
    again = pair.exporter.call("cuMemImportFromShareableHandle", {"out": 0}, descriptor, DESCRIPTOR)
    assert again.code == 0
    pair.exporter.code("close_descriptor", descriptor)
    assert pair.exporter.code("cuMemRelease", handle) == 0
    assert pair.used() == SIZE
    assert pair.exporter.code("cuMemRelease", again.outputs[0]) == 0
    assert pair.used() == 0


def test_only_what_was_made_for_it_can_be_exported(pair: Pair, tmp_path: Path) -> None:
    plain = pair.exporter.call("cuMemCreate", {"out": 0}, SIZE, memory_prop(), 0).outputs[0]
    for handle, kind in ((plain, DESCRIPTOR), (pair.memory(), 2), (pair.memory(), 0)):
        answer = pair.exporter.call("cuMemExportToShareableHandle", {"out": 7}, handle, kind, 0)
        assert (answer.code, answer.outputs) == (1, [7])
    pool = pair.exporter.call("cuMemPoolCreate", {"out": 0}, pool_props(handles=DESCRIPTOR)).outputs[0]
    shared = pair.exporter.call("cuMemPoolExportToShareableHandle", {"out": 0}, pool, DESCRIPTOR, 0)
    wrong = pair.exporter.call("cuMemImportFromShareableHandle", {"out": 7}, shared.outputs[0], DESCRIPTOR)
    assert (wrong.code, wrong.outputs) == (1, [7]), "a pool is no memory"


def test_closing_all_descriptors_keeps_shared_memory(pair: Pair) -> None:
    pair.memory()
    pair.exporter.code("close_descriptors")
    assert pair.used() == SIZE
    pair.exporter.kill()
    assert pair.used() == 0


def test_a_forked_child_does_not_keep_shared_memory(pair: Pair) -> None:
    pair.memory()
    child = pair.exporter.call("fork_sleeper").outputs[0]
    pair.exporter.kill()
    try:
        assert pair.used() == 0
    finally:
        Path(f"/proc/{child}").exists() and __import__("os").kill(child, 9)


def share_pool(pair: Pair, size: int) -> tuple[int, int, int, int]:
    """Pool and pointer at the exporter, pool and pointer at the importer."""
    pool = pair.exporter.call("cuMemPoolCreate", {"out": 0}, pool_props(handles=DESCRIPTOR)).outputs[0]
    address = pair.exporter.call("cuMemAllocFromPoolAsync", {"out": 0}, size, pool, 0).outputs[0]
    exported = pair.exporter.call("cuMemPoolExportToShareableHandle", {"out": 0}, pool, DESCRIPTOR, 0)
    assert exported.code == 0
    pair.exporter.code("post_descriptor", pair.mailbox, exported.outputs[0])
    data = pair.exporter.call("cuMemPoolExportPointer", {"bytes": "00" * 64}, address)
    assert data.code == 0
    descriptor = pair.importer.call("collect_descriptor").outputs[0]
    import_ = ("cuMemPoolImportFromShareableHandle", {"out": 0}, descriptor, DESCRIPTOR, 0)
    imported = pair.importer.call(*import_)
    assert imported.code == 0
    pair.importer.code("close_descriptor", descriptor)
    pointer = pair.importer.call(
        "cuMemPoolImportPointer", {"out": 0}, imported.outputs[0], {"bytes": data.outputs[0]}
    )
    assert pointer.code == 0
    return pool, address, imported.outputs[0], pointer.outputs[0]


def test_an_imported_pool_is_not_new_memory(pair: Pair) -> None:
    pool, address, imported, pointer = share_pool(pair, PAGE)
    assert pair.used() == STEP
    assert pair.node.group("importer")["used"] == CONTEXT
    assert pair.importer.code("cuMemsetD8_v2", pointer, 1, PAGE) == 0
    assert pair.importer.code("cuMemAllocFromPoolAsync", {"out": 0}, 1, imported, 0) == 1
    assert pair.importer.code("cuDeviceSetMemPool", 0, imported) == 1
    assert pair.importer.code("cuMemPoolGetAttribute", imported, structs.RESERVED, {"out": 0}) == 1
    assert pair.importer.call("cuMemPoolGetAttribute", imported, 10, {"out": 9}).outputs == [0]
    assert pair.importer.code("cuMemFreeAsync", pointer, 0) == 0
    assert pair.importer.code("cuMemFreeAsync", pointer, 0) == 1
    assert pair.importer.code("cuMemPoolDestroy", imported) == 0
    assert pair.exporter.code("cuMemFreeAsync", address, 0) == 0
    assert pair.exporter.code("cuMemPoolDestroy", pool) == 0
    assert pair.used() == 0


def test_a_pool_grows_and_shrinks_while_it_is_shared(pair: Pair) -> None:
    pool, address, _, _ = share_pool(pair, PAGE)
    more = pair.exporter.call("cuMemAllocFromPoolAsync", {"out": 0}, SIZE, pool, 0).outputs[0]
    assert pair.used() == STEP + 4 * STEP
    assert pair.exporter.code("cuMemFreeAsync", more, 0) == 0
    assert pair.exporter.code("cuCtxSynchronize") == 0
    assert pair.used() == STEP
    assert address


def test_a_dead_exporters_pool_lives_with_its_importers(pair: Pair) -> None:
    _, _, imported, pointer = share_pool(pair, PAGE)
    pair.exporter.kill()
    assert pair.used() == STEP
    assert pair.importer.code("cuMemPoolDestroy", imported) == 0
    assert pair.used() == STEP, "a pointer is still there"
    assert pair.importer.code("cuMemFree_v2", pointer) == 0
    assert pair.used() == 0


def test_pointers_belong_to_their_pool(pair: Pair) -> None:
    _, _, imported, _ = share_pool(pair, PAGE)
    other = pair.exporter.call("cuMemPoolCreate", {"out": 0}, pool_props(handles=DESCRIPTOR)).outputs[0]
    address = pair.exporter.call("cuMemAllocFromPoolAsync", {"out": 0}, 1, other, 0).outputs[0]
    data = pair.exporter.call("cuMemPoolExportPointer", {"bytes": "00" * 64}, address).outputs[0]
    answer = pair.importer.call("cuMemPoolImportPointer", {"out": 7}, imported, {"bytes": data})
    assert (answer.code, answer.outputs[0]) == (1, 7)
    default = pair.exporter.call("cuMemAllocAsync", {"out": 0}, 1, 0).outputs[0]
    assert pair.exporter.code("cuMemPoolExportPointer", {"bytes": "00" * 64}, default) == 1


def test_exporters_memory_is_listed_with_its_process(pair: Pair) -> None:
    pair.memory()
    pair.exporter.call("cuMemAllocAsync", {"out": 0}, 1, 0)
    listed = dict(pair.importer.listed())
    assert listed[pair.exporter.popen.pid] == CONTEXT + SIZE + STEP
    assert listed[pair.importer.popen.pid] == CONTEXT
    held = {process["pid"]: process for process in pair.node.books()["processes"]}
    assert held[pair.exporter.popen.pid]["peak"] == CONTEXT + SIZE + STEP
