# SPDX-License-Identifier: Apache-2.0
"""Memory is held to the byte that the GPU gives; the simulated driver's own books decide."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot_agent import region
from shim.tests import shares
from shim.tests.conftest import LIMIT
from shim.tests.probe import (
    INVALID_VALUE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    SUCCESS,
    Probe,
)
from shim.tests.sandbox import MIB, Sandbox

Start = Callable[..., Probe]
PAGE = 2 * MIB
GRAIN = 512


def requested(node: Sandbox) -> tuple[int, int]:
    """Explicit allocations of the container by the driver's books: now, and at their peak."""
    group = node.container()
    return group["requested"], group["requested_peak"]


def taken(node: Sandbox) -> tuple[int, int]:
    """What the GPU gives the container, in whole pages, but for one context: now, and at its peak."""
    group = node.container()
    cost = node.context_bytes()
    return group["used"] - cost, group["peak"] - cost


def test_last_byte_fits_and_the_next_does_not(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    first = probe.alloc(LIMIT - PAGE)
    assert first[0] == SUCCESS
    assert probe.alloc(PAGE - GRAIN)[0] == SUCCESS
    assert probe.alloc(GRAIN + 1) == (OUT_OF_MEMORY, 0)
    assert probe.alloc(GRAIN)[0] == SUCCESS
    assert probe.alloc(1) == (OUT_OF_MEMORY, 0)
    assert requested(node) == (LIMIT, LIMIT) == taken(node)
    assert probe.free(first[1]) == SUCCESS
    assert probe.alloc(LIMIT - PAGE)[0] == SUCCESS, "goes on after a refusal"
    assert shares.usage(share).denied == 2


@pytest.mark.parametrize(
    ("size", "charge"),
    [
        (1, GRAIN),
        (GRAIN, GRAIN),
        (PAGE - 1, PAGE),
        (PAGE, PAGE),
        (PAGE + 1, 2 * PAGE),
        (5 * PAGE - 1, 5 * PAGE),
    ],
)
def test_charge_is_what_the_gpu_gives(
    node: Sandbox, share: Path, start: Start, size: int, charge: int
) -> None:
    probe = start(node)
    probe.begin()
    pointer = probe.alloc(size)[1]
    assert shares.usage(share).used_bytes == charge
    assert probe.free(pointer) == SUCCESS
    assert shares.usage(share).used_bytes == 0


def test_pages_that_the_gpu_gives_never_pass_the_limit(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    answers = [probe.alloc(PAGE + 1)[0] for _ in range(LIMIT // PAGE // 2 + 1)]
    assert answers == [SUCCESS] * (len(answers) - 1) + [OUT_OF_MEMORY]
    assert taken(node) == (LIMIT, LIMIT)


@pytest.mark.parametrize("size", [1 << 57, (1 << 64) - 1])
def test_request_past_all_reason_is_counted_as_denied(
    node: Sandbox, share: Path, start: Start, size: int
) -> None:
    probe = start(node)
    probe.begin()
    assert probe.alloc(size) == (OUT_OF_MEMORY, 0)
    assert shares.usage(share).denied == 1
    assert shares.usage(share).used_bytes == 0


def test_processes_of_a_share_have_one_limit_together(node: Sandbox, share: Path, start: Start) -> None:
    one, two = start(node), start(node)
    one.begin()
    two.begin()
    assert one.alloc(300 * MIB)[0] == SUCCESS
    assert two.alloc(212 * MIB + 1)[0] == OUT_OF_MEMORY
    assert two.alloc(212 * MIB)[0] == SUCCESS
    assert one.alloc(1)[0] == OUT_OF_MEMORY
    assert requested(node) == (LIMIT, LIMIT)


def test_pitch_counts_padded_rows(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    probe.reset(4)
    cells = probe.ok("cuMemAllocPitch_v2", "&4", "&5", 1000, 3 << 10, 4).cells
    pitch = cells[5]
    assert pitch > 1000
    assert shares.usage(share).used_bytes == 2 * PAGE == taken(node)[0]
    assert requested(node)[0] == pitch * (3 << 10)
    assert probe.alloc(LIMIT - 2 * PAGE)[0] == SUCCESS
    assert probe.free(cells[4]) == SUCCESS
    assert shares.usage(share).used_bytes == taken(node)[0]


def test_pitch_that_only_pads_past_the_limit_is_refused(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    rows = LIMIT // 1000
    answer = probe.call("cuMemAllocPitch_v2", "&4", "&5", 1000, rows, 4)
    assert (answer.result, answer.cells) == (OUT_OF_MEMORY, {})
    assert shares.usage(share).used_bytes == 0 == requested(node)[1]


@pytest.mark.parametrize(
    ("width", "height"), [(1, 1 << 22), ((1 << 64) - 1, 1), (1 << 40, 1 << 40)], ids=["thin", "wide", "huge"]
)
def test_pitch_is_refused_before_the_driver_is_asked(
    node: Sandbox, share: Path, start: Start, width: int, height: int
) -> None:
    probe = start(node)
    probe.begin()
    answer = probe.call("cuMemAllocPitch_v2", "&4", "&5", width, height, 4)
    assert (answer.result, answer.cells) == (OUT_OF_MEMORY, {})
    assert taken(node) == (0, 0)
    assert shares.usage(share).denied == 1


@pytest.mark.parametrize(
    ("symbol", "arguments"),
    [
        pytest.param("cuMemAlloc", ("&4", 8 * MIB), id="32-bit"),
        pytest.param("cuMemAllocPitch", ("&4", "&5", 512, 16384, 4), id="pitch-32-bit"),
    ],
)
def test_other_families_count_in_full(
    node: Sandbox, share: Path, start: Start, symbol: str, arguments: tuple[int | str, ...]
) -> None:
    probe = start(node)
    probe.begin()
    cells = probe.ok(symbol, *arguments).cells
    assert shares.usage(share).used_bytes == 8 * MIB == requested(node)[0]
    assert probe.alloc(LIMIT - 8 * MIB + 1)[0] == OUT_OF_MEMORY
    assert probe.free(cells[4] & 0xFFFFFFFF) == SUCCESS
    assert shares.usage(share).used_bytes == 0 == requested(node)[0]


def test_managed_memory_counts_in_full_wherever_its_pages_are(
    node: Sandbox, share: Path, start: Start
) -> None:
    probe = start(node)
    probe.begin()
    pointer = probe.ok("cuMemAllocManaged", "&4", 8 * MIB, 1).cells[4]
    assert shares.usage(share).used_bytes == 8 * MIB
    assert taken(node)[0] == 0, "no page of it has been used on the GPU"
    assert probe.alloc(LIMIT - 8 * MIB + 1)[0] == OUT_OF_MEMORY
    assert probe.free(pointer) == SUCCESS
    assert shares.usage(share).used_bytes == 0


def test_floor_is_the_least_that_counts(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    shares.poke_mapped(share, "quota", region.QuotaLayout.floor_bytes.offset, 500 * MIB)
    assert probe.info()[0] == 12 * MIB
    shares.poke_mapped(share, "quota", region.QuotaLayout.floor_bytes.offset, LIMIT + 1)
    assert probe.alloc(1)[0] == OUT_OF_MEMORY
    assert probe.info()[0] == 0


def test_resize_is_seen_by_the_next_call(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    assert probe.alloc(LIMIT)[0] == SUCCESS
    shares.resize(share, 2 * LIMIT)
    assert probe.info() == (LIMIT, 2 * LIMIT)
    assert probe.alloc(LIMIT)[0] == SUCCESS
    shares.resize(share, LIMIT)
    assert probe.info() == (0, LIMIT), "below what is in use: nothing free, no error"
    assert probe.alloc(1)[0] == OUT_OF_MEMORY


def test_view_is_the_lesser_of_share_and_gpu(node: Sandbox, start: Start) -> None:
    share = shares.make(node, gpu=node.gpu(), limit=1 << 45)
    probe, bare = start(node), start(node, bare=True)
    probe.begin()
    bare.begin()
    assert probe.info() == bare.info()
    total = bare.ok("cuDeviceTotalMem_v2", "&8", 0).cells[8]
    assert probe.ok("cuDeviceTotalMem_v2", "&8", 0).cells[8] == total
    shares.resize(share, LIMIT)
    probe.reset(8)
    assert probe.ok("cuDeviceTotalMem_v2", "&8", 0).cells[8] == LIMIT


def test_32_bit_view_is_computed_before_it_is_cut_to_32_bits(node: Sandbox, start: Start) -> None:
    shares.make(node, gpu=node.gpu(), limit=8192 * MIB)
    probe = start(node)
    probe.begin()
    assert probe.alloc(6144 * MIB)[0] == SUCCESS
    cells = probe.ok("cuMemGetInfo", "&8", "&10").cells
    assert cells[8] & 0xFFFFFFFF == 2048 * MIB


def test_info_takes_a_null_pointer_for_either(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    assert probe.ok("cuMemGetInfo_v2", 0, "&3").cells == {3: LIMIT}
    assert probe.ok("cuMemGetInfo_v2", "&2", 0).cells == {2: LIMIT}


def test_neighbours_on_the_gpu_are_seen_as_used(node: Sandbox, tmp_path: Path, start: Start) -> None:
    shares.make(node, gpu=node.gpu(), limit=1 << 45)
    probe, bare = start(node), start(node, bare=True)
    probe.begin()
    bare.begin()
    before = probe.info()[0]
    assert bare.alloc(64 * MIB)[0] == SUCCESS
    assert probe.info()[0] == before - 64 * MIB


UNACCOUNTED = [
    ("cuMemMapArrayAsync", ("&9", 1, 0)),
    ("cuMemMapArrayAsync_ptsz", ("&9", 1, 0)),
]


@pytest.mark.parametrize(("symbol", "arguments"), UNACCOUNTED, ids=[name for name, _ in UNACCOUNTED])
def test_what_is_not_accounted_is_refused_under_a_limit(
    node: Sandbox, share: Path, start: Start, symbol: str, arguments: tuple[int | str, ...]
) -> None:
    probe = start(node)
    probe.begin()
    answer = probe.call(symbol, *arguments)
    assert (answer.result, answer.cells) == (NOT_SUPPORTED, {})


def test_unlimited_share_is_the_bare_driver_but_for_its_books(node: Sandbox, start: Start) -> None:
    share = shares.make(node, gpu=node.gpu(), limit=0, unlimited=True)
    probe, bare = start(node), start(node, bare=True)
    for one in (probe, bare):
        one.begin()
    for symbol, arguments in UNACCOUNTED:
        assert probe.call(symbol, *arguments).result == bare.call(symbol, *arguments).result, symbol
    assert probe.info() == bare.info()
    assert probe.alloc(2048 * MIB)[0] == SUCCESS
    assert shares.usage(share).used_bytes == 2048 * MIB


def test_each_gpu_has_its_own_share(tmp_path: Path, start: Start) -> None:
    node = Sandbox(folder=tmp_path)
    node.start_node("l4:2")
    one = shares.make(node, gpu=node.gpu(), limit=256 * MIB, name="a")
    two = shares.make(node, gpu=node.gpu(1), limit=128 * MIB, name="b")
    probe = start(node)
    probe.begin(1)
    assert probe.info() == (128 * MIB, 128 * MIB)
    assert probe.alloc(128 * MIB)[0] == SUCCESS
    probe.begin(0)
    assert probe.info() == (256 * MIB, 256 * MIB)
    assert probe.alloc(200 * MIB)[0] == SUCCESS
    assert (shares.usage(one).used_bytes, shares.usage(two).used_bytes) == (200 * MIB, 128 * MIB)


@pytest.mark.parametrize("visible", ["1", "{uuid}"])
def test_share_follows_the_uuid_not_the_ordinal(tmp_path: Path, start: Start, visible: str) -> None:
    node = Sandbox(folder=tmp_path)
    node.start_node("l4:2")
    shares.make(node, gpu=node.gpu(), limit=256 * MIB, name="a")
    shares.make(node, gpu=node.gpu(1), limit=128 * MIB, name="b")
    environment = node.environment() | {"CUDA_VISIBLE_DEVICES": visible.format(uuid=node.gpu(1))}
    probe = start(node, env=environment)
    probe.begin(0)
    assert probe.info() == (128 * MIB, 128 * MIB)


def test_many_live_allocations_are_all_accounted(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    pointers = [probe.alloc(4096)[1] for _ in range(3000)]
    assert shares.usage(share).used_bytes == 3000 * 4096 == requested(node)[0]
    assert all(probe.free(pointer) == SUCCESS for pointer in pointers[::2])
    assert shares.usage(share).used_bytes == 1500 * 4096 == requested(node)[0]
    assert probe.free(pointers[0]) == INVALID_VALUE, "freed already"
    assert shares.usage(share).used_bytes == 1500 * 4096
