# SPDX-License-Identifier: Apache-2.0
"""Arrays take what their layout needs; sparse and deferred ones what is mapped into them."""

import struct
from typing import Any

import pytest

from shim.sim.tests import structs
from shim.sim.tests.simnode import CONTEXT, L4_CAPACITY, MIB, PAGE, Node, Probe
from shim.sim.tests.structs import memory_prop, raw

KEPT = 0xABCDEF
U8, U16, FLOAT, HALF = 0x01, 0x02, 0x20, 0x10
LAYERED, SURFACE, CUBEMAP, SPARSE, DEFERRED = 1, 2, 4, 0x40, 0x80
TILE = 64 << 10


def volume(
    width: int, height: int = 0, depth: int = 0, *, format_: int = FLOAT, channels: int = 1, flags: int = 0
) -> Any:
    return raw(struct.pack("<QQQiII4x", width, height, depth, format_, channels, flags))


def create(probe: Probe, about: Any, levels: int | None = None) -> int:
    if levels is None:
        answer = probe.call("cuArray3DCreate_v2", {"out": 0}, about)
    else:
        answer = probe.call("cuMipmappedArrayCreate", {"out": 0}, about, levels)
    assert answer.code == 0
    handle: int = answer.outputs[0]
    return handle


def gobs(width_bytes: int, rows: int, layers: int = 1) -> int:
    """Blocks of 64 bytes by 8 rows."""
    return -(-width_bytes // 64) * 64 * (-(-rows // 8) * 8 if rows > 1 else 1) * layers


@pytest.mark.parametrize(
    ("about", "size"),
    [
        (volume(1 << 20 >> 4), gobs(4 << 16, 1)),
        (volume(1000, 1001), gobs(4000, 1001)),
        (volume(1000, 1001, channels=4), gobs(16000, 1001)),
        (volume(1000, 1001, 3), gobs(4000, 1001, 3)),
        (volume(1000, 1001, 5, flags=LAYERED), gobs(4000, 1001, 5)),
        (volume(1000, 0, 5, flags=LAYERED), gobs(4000, 1, 5)),
        (volume(500, 500, 6, flags=CUBEMAP), gobs(2000, 500, 6)),
        (volume(2000, 1000, format_=0x91, channels=4), gobs(500 * 8, 250)),
        (volume(2000, 1000, format_=0x99, channels=2), gobs(500 * 16, 250)),
        (volume(1920, 1080, format_=0xB0, channels=3), gobs(1920, 1080) * 3 // 2),
        (volume(2000, 1000, format_=0xC5, channels=4), gobs(16000, 1000)),
        (volume(2000, 1000, format_=HALF, channels=2, flags=SURFACE), gobs(8000, 1000)),
    ],
    ids=[
        "1d",
        "2d",
        "float4",
        "3d",
        "2d-layers",
        "1d-layers",
        "cube",
        "bc1",
        "bc5",
        "nv12",
        "unorm",
        "half2",
    ],
)
def test_an_array_takes_what_its_layout_needs(node: Node, about: Any, size: int) -> None:
    probe = node.probe(group="g")
    probe.start()
    array = create(probe, about)
    size = -(-size // 512) * 512
    assert node.group("g")["requested"] == size
    assert node.group("g")["used"] == CONTEXT + -(-size // PAGE) * PAGE
    described = probe.call("cuArray3DGetDescriptor_v2", raw(b"\0" * 40), array)
    assert described.outputs[0][:72] == about["bytes"][:72]
    assert probe.code("cuArrayDestroy", array) == 0
    assert probe.code("cuArrayDestroy", array) == 400
    assert node.gpu()["used"] == CONTEXT


def test_old_and_flat_abis_make_the_same_arrays(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    size = gobs(4000, 1001)
    for name, about in [
        ("cuArrayCreate_v2", struct.pack("<QQiI", 1000, 1001, FLOAT, 1)),
        ("cuArrayCreate", struct.pack("<IIiI", 1000, 1001, FLOAT, 1)),
        ("cuArray3DCreate", struct.pack("<IIIiII", 1000, 1001, 0, FLOAT, 1, 0)),
    ]:
        answer = probe.call(name, {"out": 0}, raw(about))
        assert answer.code == 0
        assert node.group("g")["requested"] == size
        kind = "cuArray3DGetDescriptor" if "3D" in name else "cuArrayGetDescriptor"
        suffix = "_v2" if name.endswith("_v2") else ""
        described = probe.call(f"{kind}{suffix}", raw(b"\0" * len(about)), answer.outputs[0])
        assert described.outputs[0] == about.hex()
        assert probe.code("cuArrayDestroy", answer.outputs[0]) == 0


def test_a_mipmapped_array_takes_all_its_levels(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    mipmap = create(probe, volume(1024, 512), 4)
    size = sum(gobs(4 * 1024 >> level, 512 >> level) for level in range(4))
    assert node.group("g")["requested"] == size
    level = probe.call("cuMipmappedArrayGetLevel", {"out": 0}, mipmap, 3).outputs[0]
    described = probe.call("cuArray3DGetDescriptor_v2", raw(b"\0" * 40), level)
    assert struct.unpack_from("<QQ", bytes.fromhex(described.outputs[0])) == (128, 64)
    assert probe.call("cuMipmappedArrayGetLevel", {"out": 0}, mipmap, 3).outputs == [level]
    assert probe.code("cuArrayDestroy", level) == 400, "it is its mipmapped array's"
    assert probe.code("cuMipmappedArrayGetLevel", {"out": 0}, mipmap, 4) == 1
    assert probe.code("cuMipmappedArrayDestroy", mipmap) == 0
    assert probe.code("cuMipmappedArrayDestroy", mipmap) == 400
    assert probe.code("cuArray3DGetDescriptor_v2", raw(b"\0" * 40), level) == 400
    assert node.gpu()["used"] == CONTEXT


def test_arrays_end_with_their_context(node: Node) -> None:
    probe = node.probe()
    probe.start()
    kept = create(probe, volume(1000, 1000))
    made = probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).outputs[0]
    lost = create(probe, volume(4000, 4000))
    create(probe, volume(4000, 4000), 5)
    assert probe.code("cuCtxDestroy_v2", made) == 0
    assert probe.code("cuArrayDestroy", lost) == 400
    assert node.gpu()["used"] == CONTEXT + 4 * MIB
    assert probe.code("cuArrayDestroy", kept) == 0


def requirements(probe: Probe, name: str, handle: int) -> tuple[int, int]:
    answer = probe.call(name, raw(b"\0" * 32), handle, 0)
    assert answer.code == 0
    size, alignment = struct.unpack_from("<QQ", bytes.fromhex(answer.outputs[0]))
    return size, alignment


def test_a_deferred_array_tells_what_it_needs_and_takes_nothing(node: Node) -> None:
    probe = node.probe(group="g")
    probe.start()
    deferred = create(probe, volume(1000, 1001, flags=DEFERRED))
    mipmap = create(probe, volume(1000, 1001, flags=DEFERRED), 3)
    assert node.gpu()["used"] == CONTEXT
    size, alignment = requirements(probe, "cuArrayGetMemoryRequirements", deferred)
    levels, _ = requirements(probe, "cuMipmappedArrayGetMemoryRequirements", mipmap)
    assert alignment == 512
    plain = create(probe, volume(1000, 1001))
    assert node.group("g")["requested"] == size, "a twin tells the size beforehand"
    assert probe.code("cuArrayGetMemoryRequirements", raw(b"\0" * 32), plain, 0) == 1
    assert probe.code("cuArrayGetMemoryRequirements", raw(b"\0" * 32), deferred, 3) == 101
    create(probe, volume(1000, 1001), 3)
    assert node.group("g")["requested"] == size + levels


def entry(
    array: int,
    *,
    memory: int = 0,
    part: bytes = b"",
    kind: int = 0,
    operation: int = 1,
    mipmap: bool = False,
    offset: int = 0,
    mask: int = 1,
) -> bytes:
    head = struct.pack("<i4xQi4x", 1 if mipmap else 0, array, kind)
    return head + part.ljust(32, b"\0") + struct.pack("<iiQQII8x", operation, 0, memory, offset, mask, 0)


def box(x: int, y: int, width: int, height: int, level: int = 0) -> bytes:
    return struct.pack("<8I", level, 0, x, y, 0, width, height, 1)


def memory(probe: Probe, size: int = PAGE, usage: int = structs.TILE_POOL) -> int:
    answer = probe.call("cuMemCreate", {"out": 0}, size, memory_prop(usage=usage), 0)
    assert answer.code == 0
    handle: int = answer.outputs[0]
    return handle


def test_a_sparse_array_keeps_the_memory_mapped_into_it(node: Node) -> None:
    probe = node.probe()
    probe.start()
    array = create(probe, volume(4096, 4096, flags=SPARSE))
    assert node.gpu()["used"] == CONTEXT
    tile = probe.call("cuArrayGetSparseProperties", raw(b"\0" * 48), array)
    width, height, depth = struct.unpack_from("<3I", bytes.fromhex(tile.outputs[0]))
    assert width * height * depth * 4 == TILE
    pool = memory(probe)
    whole = box(0, 0, 8 * width, 4 * height)
    assert probe.code("cuMemMapArrayAsync", raw(entry(array, memory=pool, part=whole)), 1, 0) == 0
    assert probe.code("cuMemRelease", pool) == 0
    assert node.gpu()["used"] == CONTEXT + PAGE
    unmap = raw(entry(array, part=whole, operation=2))
    assert probe.code("cuMemMapArrayAsync_ptsz", unmap, 1, 0) == 0
    assert node.gpu()["used"] == CONTEXT
    assert probe.code("cuMemMapArrayAsync", unmap, 1, 0) == 1


def test_a_destroyed_array_lets_go_of_its_memory(node: Node) -> None:
    probe = node.probe()
    probe.start()
    deferred = create(probe, volume(500, 500, flags=DEFERRED))
    mipmap = create(probe, volume(500, 500, flags=DEFERRED), 2)
    for handle, is_mipmap in ((deferred, False), (mipmap, True)):
        pool = memory(probe, usage=0)
        info = raw(entry(handle, memory=pool, mipmap=is_mipmap))
        assert probe.code("cuMemMapArrayAsync", info, 1, 0) == 0
        assert probe.code("cuMemRelease", pool) == 0
    assert node.gpu()["used"] == CONTEXT + 2 * PAGE
    assert probe.code("cuArrayDestroy", deferred) == 0
    assert node.gpu()["used"] == CONTEXT + PAGE
    assert probe.code("cuMipmappedArrayDestroy", mipmap) == 0
    assert node.gpu()["used"] == CONTEXT


def test_misplaced_mappings_are_refused(node: Node) -> None:
    probe = node.probe()
    probe.start()
    sparse = create(probe, volume(4096, 4096, flags=SPARSE))
    plain = create(probe, volume(64, 64))
    pool, other = memory(probe), memory(probe, usage=0)
    good = box(0, 0, 128, 128)
    for code, info in [
        (1, entry(plain, memory=pool, part=good)),
        (1, entry(KEPT, memory=pool, part=good)),
        (400, entry(sparse, memory=KEPT, part=good)),
        (1, entry(sparse, memory=other, part=good)),
        (1, entry(sparse, memory=pool, part=box(1, 0, 128, 128))),
        (1, entry(sparse, memory=pool, part=box(0, 0, 4096, 4096))),
        (1, entry(sparse, memory=pool, part=box(0, 0, 128, 128, level=1))),
        (1, entry(sparse, memory=pool, part=good, mask=2)),
        (1, entry(sparse, memory=pool, part=good, operation=3)),
        (1, entry(sparse, memory=pool, part=good, offset=PAGE)),
    ]:
        assert probe.code("cuMemMapArrayAsync", raw(info), 1, 0) == code
    assert probe.code("cuMemMapArrayAsync", 0, 1, 0) == 1
    assert probe.code("cuMemRelease", pool) == 0
    assert node.gpu()["used"] == CONTEXT + 2 * PAGE, "nothing keeps the pool"


@pytest.mark.parametrize(
    ("about", "code"),
    [
        (volume(0), 1),
        (volume(131073), 1),
        (volume(131073, 2), 1),
        (volume(10, 65537), 1),
        (volume(16385, 1, 1), 1),
        (volume(10, 0, 10), 1),
        (volume(10, 10, channels=3), 1),
        (volume(10, 10, channels=0), 1),
        (volume(10, 10, format_=0x7), 1),
        (volume(10, 10, flags=0x1000), 1),
        (volume(10, 20, 6, flags=CUBEMAP), 1),
        (volume(10, 10, 5, flags=CUBEMAP), 1),
        (volume(10, 10, 2049, flags=LAYERED), 1),
        (volume(10, flags=SPARSE), 1),
        (volume(10, 10, flags=SPARSE | DEFERRED), 1),
        (volume(10, 10, format_=0xA5, channels=3), 801),
        (volume(131072, 65536), 2),
    ],
    ids=str,
)
def test_impossible_arrays_are_refused(node: Node, about: Any, code: int) -> None:
    probe = node.probe()
    probe.start()
    for request_ in (
        ("cuArray3DCreate_v2", {"out": KEPT}, about),
        ("cuMipmappedArrayCreate", {"out": KEPT}, about, 1),
    ):
        answer = probe.call(*request_)
        assert (answer.code, answer.outputs[0]) == (code, KEPT)
    assert node.gpu()["peak"] == CONTEXT


def test_levels_are_limited_by_the_size(node: Node) -> None:
    probe = node.probe()
    probe.start()
    for levels, code in ((0, 1), (10, 0), (11, 1)):
        assert probe.code("cuMipmappedArrayCreate", {"out": 0}, volume(512, 100), levels) == code
    assert probe.code("cuMipmappedArrayCreate", {"out": 0}, volume(4, 4, 1000, flags=LAYERED), 4) == 1


def test_arrays_need_a_context_and_a_handle(node: Node) -> None:
    probe = node.probe()
    assert probe.code("cuArrayCreate_v2", {"out": KEPT}, 0) == 3
    assert probe.code("cuInit", 0) == 0
    assert probe.code("cuArray3DCreate_v2", {"out": KEPT}, volume(1)) == 201
    probe.retain()
    assert probe.code("cuArrayCreate_v2", {"out": KEPT}, 0) == 1
    assert probe.code("cuArray3DCreate_v2", 0, volume(1)) == 1
    for handle in (0, KEPT):
        assert probe.code("cuArrayDestroy", handle) == 400
        assert probe.code("cuMipmappedArrayDestroy", handle) == 400
    array = create(probe, volume(L4_CAPACITY >> 20))
    assert probe.code("cuArray3DGetDescriptor_v2", 0, array) == 1
    assert probe.code("cuArrayGetSparseProperties", raw(b"\0" * 48), array) == 1
