# SPDX-License-Identifier: Apache-2.0
"""Memory without addresses, addresses without memory, and when memory ends."""

import itertools

import pytest

from shim.sim.tests import structs
from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, Probe
from shim.sim.tests.structs import DESCRIPTOR, access, location, memory_prop

KEPT = 0xABCDEF
SIZE = 20 * MIB


def create(probe: Probe, size: int = SIZE, **prop: object) -> int:
    answer = probe.call("cuMemCreate", {"out": 0}, size, memory_prop(**prop), 0)  # type: ignore[arg-type]
    assert answer.code == 0
    handle: int = answer.outputs[0]
    return handle


def reserve(probe: Probe, size: int = SIZE, alignment: int = 0) -> int:
    answer = probe.call("cuMemAddressReserve", {"out": 0}, size, alignment, 0, 0)
    assert answer.code == 0
    address: int = answer.outputs[0]
    return address


def mapped(probe: Probe, handle: int, size: int = SIZE) -> int:
    address = reserve(probe, size)
    assert probe.code("cuMemMap", address, size, 0, handle, 0) == 0
    assert probe.code("cuMemSetAccess", address, size, access(), 1) == 0
    return address


def test_memory_counts_from_its_creation_on(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    address = reserve(probe, 8000 * MIB)
    assert node.gpu()["used"] == CONTEXT, "addresses cost nothing"
    handle = create(probe)
    assert node.group("g")["used"] == CONTEXT + SIZE
    assert node.group("g")["requested"] == SIZE
    assert probe.code("cuMemMap", address, SIZE, 0, handle, 0) == 0
    assert node.group("g")["used"] == CONTEXT + SIZE, "a mapping costs nothing"
    assert probe.code("cuMemUnmap", address, SIZE) == 0
    assert probe.code("cuMemRelease", handle) == 0
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemAddressFree", address, 8000 * MIB) == 0


def test_memory_ends_with_its_last_handle_and_mapping(node: Node) -> None:
    probe = node.probe()
    probe.start()
    handle = create(probe)
    first, second = mapped(probe, handle), mapped(probe, handle)
    assert probe.code("cuMemRelease", handle) == 0, "a mapped handle can be released"
    assert probe.code("cuMemRelease", handle) == 1
    assert probe.code("cuMemMap", reserve(probe), SIZE, 0, handle, 0) == 1
    assert probe.code("cuMemUnmap", first, SIZE) == 0
    assert node.gpu()["used"] == CONTEXT + SIZE
    retained = probe.call("cuMemRetainAllocationHandle", {"out": 0}, second + SIZE - 1)
    assert (retained.code, retained.outputs) == (0, [handle])
    assert probe.code("cuMemUnmap", second, SIZE) == 0
    assert node.gpu()["used"] == CONTEXT + SIZE
    assert probe.code("cuMemRelease", handle) == 0
    assert node.gpu()["used"] == CONTEXT


def test_handles_are_counted(node: Node) -> None:
    probe = node.probe()
    probe.start()
    handle = create(probe)
    address = mapped(probe, handle)
    for _ in range(2):
        assert probe.call("cuMemRetainAllocationHandle", {"out": 0}, address).outputs == [handle]
    assert probe.code("cuMemUnmap", address, SIZE) == 0
    assert [probe.code("cuMemRelease", handle) for _ in range(4)] == [0, 0, 0, 1]
    assert node.gpu()["used"] == CONTEXT
    assert create(probe) != handle, "a stale handle is seen as such"
    assert probe.code("cuMemRelease", handle) == 1


def test_the_location_counts_not_the_current_context(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    assert probe.code("cuInit", 0) == 0
    create(probe, where=location(number=1))
    create(probe, where=location(structs.DOMAIN, 1))
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [0, 2 * SIZE]
    create(probe, where=location(structs.HOST))
    create(probe, where=location(structs.HOST_NUMA))
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [0, 2 * SIZE]


def test_contexts_do_not_take_memory_with_them(node: Node) -> None:
    probe = node.probe()
    probe.start()
    handle = create(probe)
    address = mapped(probe, handle)
    assert probe.code("cuDevicePrimaryCtxReset_v2", 0) == 0
    assert node.gpu()["used"] == SIZE
    assert probe.code("cuMemUnmap", address, SIZE) == 0
    assert probe.code("cuMemRelease", handle) == 0
    assert node.gpu()["used"] == 0


def test_a_full_gpu_refuses_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(L4_CAPACITY - CONTEXT - SIZE)
    refused = probe.call("cuMemCreate", {"out": KEPT}, SIZE + PAGE, memory_prop(), 0)
    assert (refused.code, refused.outputs[0]) == (2, KEPT)
    shared = probe.call("cuMemCreate", {"out": KEPT}, SIZE + PAGE, memory_prop(handles=DESCRIPTOR), 0)
    assert (shared.code, shared.outputs[0]) == (2, KEPT)
    assert node.books()["shared"] == []
    create(probe)
    assert node.gpu()["used"] == node.gpu()["peak"] == L4_CAPACITY


def test_ranges_are_filled_piece_by_piece(node: Node) -> None:
    """As growing arrays do it: one range, many handles."""
    probe = node.probe()
    probe.start()
    base = reserve(probe, 10 * SIZE)
    handles = [create(probe) for _ in range(3)]
    for index, handle in enumerate(handles):
        assert probe.code("cuMemMap", base + index * SIZE, SIZE, 0, handle, 0) == 0
    assert probe.code("cuMemMap", base + SIZE, SIZE, 0, handles[0], 0) == 1, "taken"
    assert probe.code("cuMemSetAccess", base, 3 * SIZE, access(), 1) == 0
    assert probe.code("cuMemSetAccess", base, 4 * SIZE, access(), 1) == 1, "not all of it is mapped"
    assert probe.code("cuMemUnmap", base, SIZE - PAGE) == 1, "a part of a mapping"
    assert probe.code("cuMemUnmap", base + SIZE, 2 * SIZE) == 0, "several whole ones"
    assert probe.code("cuMemUnmap", base + SIZE, SIZE) == 1
    assert probe.code("cuMemAddressFree", base, 10 * SIZE) == 1, "still mapped"
    assert probe.code("cuMemUnmap", base, SIZE) == 0
    assert probe.code("cuMemAddressFree", base, 9 * SIZE) == 1, "another size"
    assert probe.code("cuMemAddressFree", base, 10 * SIZE) == 0
    assert probe.code("cuMemAddressFree", base, 10 * SIZE) == 1
    assert node.gpu()["used"] == CONTEXT + 3 * SIZE
    assert [probe.code("cuMemRelease", handle) for handle in handles] == [0, 0, 0]


def test_access_is_needed_and_can_be_asked(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    probe.start()
    address = reserve(probe)
    assert probe.code("cuMemMap", address, SIZE, 0, create(probe), 0) == 0
    asked = ("cuMemGetAccess", {"out": KEPT}, structs.raw(location()), address + MIB)
    assert probe.call(*asked).outputs[0] == structs.NO_ACCESS
    assert probe.code("cuMemsetD8_v2", address, 1, 1) == 1
    for flags in (structs.READ, structs.READ_WRITE):
        assert probe.code("cuMemSetAccess", address, SIZE, access(flags), 1) == 0
        assert probe.call(*asked).outputs[0] == flags
    assert probe.code("cuMemsetD8_v2", address + SIZE - 1, 7, 1) == 0
    assert probe.call("cuMemcpyDtoH_v2", {"bytes": "00"}, address + SIZE - 1, 1).outputs == ["07"]
    other = access(where=location(number=1))
    assert probe.code("cuMemSetAccess", address, SIZE, other, 1) == 101, "no peers"
    assert probe.code("cuMemSetAccess", address, SIZE, access(2), 1) == 1
    assert probe.code("cuMemSetAccess", address, SIZE, access(where=location(structs.HOST)), 1) == 1
    ranged = probe.call("cuMemGetAddressRange_v2", {"out": 0}, {"out": 0}, address + MIB)
    assert ranged.outputs == [address, SIZE]
    assert probe.code("cuMemFree_v2", address) == 1


def test_an_alignment_is_kept(node: Node) -> None:
    probe = node.probe()
    probe.start()
    gib = 1024 * MIB
    address = reserve(probe, PAGE, gib)
    assert address % gib == 0
    assert probe.code("cuMemMap", address, PAGE, 0, create(probe, PAGE), 0) == 0
    assert probe.code("cuMemUnmap", address, PAGE) == 0
    assert probe.code("cuMemAddressFree", address, PAGE) == 0


def test_ranges_never_touch_one_another(node: Node) -> None:
    """Programs that hope to extend a range must find out that they cannot, by whatever hint."""
    probe = node.probe()
    probe.start()
    first = reserve(probe)
    second = probe.call("cuMemAddressReserve", {"out": 0}, SIZE, 0, first + SIZE, 0).outputs[0]
    third = reserve(probe)
    starts = sorted([first, second, third])
    assert all(after - before > SIZE for before, after in itertools.pairwise(starts))


def test_properties_are_what_was_asked_for(node: Node) -> None:
    probe = node.probe()
    probe.start()
    for option in (0, 1):
        answer = probe.call("cuMemGetAllocationGranularity", {"out": 0}, memory_prop(), option)
        assert (answer.code, answer.outputs[0]) == (0, PAGE)
    wanted = memory_prop(handles=DESCRIPTOR, usage=structs.TILE_POOL)
    handle = probe.call("cuMemCreate", {"out": 0}, PAGE, wanted, 0).outputs[0]
    answer = probe.call("cuMemGetAllocationPropertiesFromHandle", structs.raw(b"\0" * 32), handle)
    assert (answer.code, answer.outputs[0]) == (0, wanted["bytes"])


@pytest.mark.parametrize(
    ("size", "prop", "flags", "code"),
    [
        (0, {}, 0, 1),
        (MIB, {}, 0, 1),
        (PAGE + 4096, {}, 0, 1),
        (PAGE, {}, 1, 1),
        (PAGE, {"type_": 0}, 0, 1),
        (PAGE, {"type_": structs.MANAGED}, 0, 1),
        (PAGE, {"where": location(number=7)}, 0, 101),
        (PAGE, {"where": location(number=-1)}, 0, 101),
        (PAGE, {"where": location(0)}, 0, 1),
        (PAGE, {"where": location(structs.HOST_NUMA_CURRENT)}, 0, 1),
        (PAGE, {"where": location(structs.INVISIBLE)}, 0, 1),
        (PAGE, {"where": location(structs.HOST), "handles": DESCRIPTOR}, 0, 1),
        (PAGE, {"where": location(structs.DOMAIN, 0x100)}, 0, 1),
        (PAGE, {"windows": 1}, 0, 1),
        (PAGE, {"handles": 2}, 0, 801),
        (PAGE, {"handles": 8}, 0, 801),
        (PAGE, {"usage": 0x80}, 0, 1),
        (1 << 50, {}, 0, 2),
    ],
    ids=str,
)
def test_impossible_memory_is_refused(
    node: Node, size: int, prop: dict[str, object], flags: int, code: int
) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call("cuMemCreate", {"out": KEPT}, size, memory_prop(**prop), flags)  # type: ignore[arg-type]
    assert (answer.code, answer.outputs[0]) == (code, KEPT)
    assert node.gpu()["peak"] == CONTEXT


MISUSE = [
    ("cuMemRelease", 0),
    ("cuMemRelease", KEPT),
    ("cuMemMap", 0x5000, PAGE, 0, KEPT, 0),
    ("cuMemUnmap", 0, PAGE),
    ("cuMemUnmap", 0x200000, PAGE),
    ("cuMemAddressReserve", {"out": KEPT}, 0, 0, 0, 0),
    ("cuMemAddressReserve", {"out": KEPT}, 100, 0, 0, 0),
    ("cuMemAddressReserve", {"out": KEPT}, PAGE, 3, 0, 0),
    ("cuMemAddressReserve", {"out": KEPT}, PAGE, 0, 0, 1),
    ("cuMemAddressReserve", 0, PAGE, 0, 0, 0),
    ("cuMemAddressFree", 0x5000, PAGE),
    ("cuMemRetainAllocationHandle", {"out": KEPT}, 0),
    ("cuMemGetAccess", {"out": KEPT}, 0, 0x5000),
    ("cuMemExportToShareableHandle", {"out": KEPT}, KEPT, 1, 0),
    ("cuMemImportFromShareableHandle", {"out": KEPT}, 0, 1),
    ("cuMemImportFromShareableHandle", {"out": KEPT}, 999, 1),
    ("cuMemCreate", {"out": KEPT}, PAGE, 0, 0),
    ("cuMulticastAddDevice", KEPT, 0),
]


@pytest.mark.parametrize("request_", MISUSE, ids=lambda request_: request_[0])
def test_misuse_changes_nothing(node: Node, request_: tuple[object, ...]) -> None:
    probe = node.probe()
    probe.start()
    answer = probe.call(*request_)
    assert (answer.code, answer.outputs) == (1, [KEPT for part in request_ if isinstance(part, dict)])
    assert node.gpu()["used"] == CONTEXT


def test_misaligned_mappings_are_refused(node: Node) -> None:
    probe = node.probe()
    probe.start()
    handle, base = create(probe), reserve(probe, 2 * SIZE)
    for address, size, offset, flags in [
        (base + 4096, PAGE, 0, 0),
        (base, MIB, 0, 0),
        (base, 0, 0, 0),
        (base, SIZE + PAGE, 0, 0),
        (base, PAGE, PAGE, 0),
        (base, PAGE, 0, 1),
        (base + 2 * SIZE - PAGE, SIZE, 0, 0),
    ]:
        assert probe.code("cuMemMap", address, size, offset, handle, flags) == 1
    assert probe.code("cuMemMap", base + 2 * SIZE - PAGE, PAGE, 0, handle, 0) == 0


def test_a_multicast_object_has_no_memory_but_keeps_what_is_bound(empty_node: Node) -> None:
    empty_node.init("h100:2")
    probe = empty_node.probe()
    probe.start()
    probe.retain(1)
    before = [gpu["used"] for gpu in empty_node.books()["gpus"]]
    answer = probe.call("cuMulticastCreate", {"out": 0}, structs.multicast_prop(2, SIZE))
    assert answer.code == 0
    team = answer.outputs[0]
    parts = [create(probe, where=location(number=number)) for number in (0, 1)]
    assert probe.code("cuMulticastBindMem", team, 0, parts[0], 0, SIZE, 0) == 1, "devices come first"
    assert [probe.code("cuMulticastAddDevice", team, device) for device in (0, 1, 1, 2)] == [0, 0, 1, 101]
    assert probe.code("cuMulticastBindMem", team, 0, parts[0], 0, SIZE, 0) == 0
    assert probe.code("cuMulticastBindMem", team, PAGE, parts[0], 0, PAGE, 0) == 1, "taken"
    address = reserve(probe)
    assert probe.code("cuMemMap", address, SIZE, 0, parts[1], 0) == 0
    assert probe.code("cuMulticastBindAddr_v2", team, 1, 0, address, SIZE, 0) == 0
    assert probe.code("cuMemUnmap", address, SIZE) == 0
    assert [probe.code("cuMemRelease", part) for part in parts] == [0, 0]
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [used + SIZE for used in before]
    assert probe.code("cuMulticastUnbind", team, 0, 0, SIZE) == 0
    assert probe.code("cuMulticastUnbind", team, 0, 0, SIZE) == 1
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == [before[0], before[1] + SIZE]
    assert probe.code("cuMemRelease", team) == 0
    assert [gpu["used"] for gpu in empty_node.books()["gpus"]] == before


def test_multicast_needs_gpus_that_can(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert probe.code("cuMulticastCreate", {"out": 0}, structs.multicast_prop(1, SIZE)) == 801


def test_killed_process_frees_its_memory(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    mapped(probe, create(probe))
    mapped(probe, create(probe, handles=DESCRIPTOR))
    assert node.group("g")["used"] == CONTEXT + 2 * SIZE
    probe.kill()
    assert node.gpu()["used"] == 0
    assert node.group("g")["used"] == node.group("g")["requested"] == 0
