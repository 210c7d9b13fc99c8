# SPDX-License-Identifier: Apache-2.0
"""Contexts, their limits and code: what they count until they are measured, and what ends with them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot_agent import region
from shim.tests import shares
from shim.tests.conftest import LIMIT
from shim.tests.probe import OUT_OF_MEMORY, SUCCESS, Probe
from shim.tests.sandbox import MIB, Sandbox

Start = Callable[..., Probe]
PAGE = 2 * MIB


def test_context_is_reserved_at_its_estimate_before_it_is_made(node: Sandbox, start: Start) -> None:
    cost = node.context_bytes()
    share = shares.make(node, gpu=node.gpu(), limit=cost * 2 - 1, estimate=cost)
    probe = start(node)
    probe.begin()
    assert shares.usage(share).used_bytes == cost
    assert probe.call("cuCtxCreate_v2", "&6", 0, 0).result == OUT_OF_MEMORY
    assert probe.alloc(cost - PAGE)[0] == SUCCESS
    assert probe.alloc(PAGE)[0] == OUT_OF_MEMORY
    other = start(node)
    other.ok("cuInit", 0)
    refused = other.call("cuDevicePrimaryCtxRetain", "&0", 0)
    assert (refused.result, refused.cells) == (OUT_OF_MEMORY, {})


@pytest.mark.parametrize("version", ["cuCtxCreate", "cuCtxCreate_v2"])
@pytest.mark.parametrize("destroy", ["cuCtxDestroy", "cuCtxDestroy_v2"])
def test_context_takes_its_memory_along(node: Sandbox, start: Start, version: str, destroy: str) -> None:
    cost = node.context_bytes()
    share = shares.make(node, gpu=node.gpu(), limit=2048 * MIB, estimate=cost)
    probe = start(node)
    probe.ok("cuInit", 0)
    context = probe.ok(version, "&6", 0, 0).cells[6]
    assert probe.alloc(100 * MIB)[0] == SUCCESS
    assert shares.usage(share).used_bytes == cost + 100 * MIB
    probe.ok(destroy, context)
    assert shares.usage(share).used_bytes == 0
    assert node.books()["gpus"][0]["used"] == 0


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"])
def test_primary_context_ends_with_its_last_release(node: Sandbox, start: Start, end: str) -> None:
    cost = node.context_bytes()
    share = shares.make(node, gpu=node.gpu(), limit=2048 * MIB, estimate=cost)
    probe = start(node)
    probe.begin()
    probe.ok("cuDevicePrimaryCtxRetain", "&7", 0)
    assert probe.alloc(10 * MIB)[0] == SUCCESS
    probe.ok(end, 0)
    assert shares.usage(share).used_bytes == cost + 10 * MIB, "retained once more"
    probe.ok(end, 0)
    assert shares.usage(share).used_bytes == 0
    probe.begin()
    assert shares.usage(share).used_bytes == cost


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_reset_of_the_primary_context_gives_everything_back(node: Sandbox, start: Start, reset: str) -> None:
    cost = node.context_bytes()
    share = shares.make(node, gpu=node.gpu(), limit=2048 * MIB, estimate=cost)
    probe = start(node)
    probe.begin()
    assert probe.alloc(10 * MIB)[0] == SUCCESS
    probe.ok(reset, 0)
    assert shares.usage(share).used_bytes == 0 == node.books()["gpus"][0]["used"]
    probe.begin()
    assert shares.usage(share).used_bytes == cost


def test_measured_overhead_replaces_the_estimate(node: Sandbox, start: Start) -> None:
    cost = node.context_bytes()
    share = shares.make(node, gpu=node.gpu(), limit=2048 * MIB, estimate=100 * MIB)
    probe = start(node)
    probe.begin()
    probe.alloc(10 * MIB)
    slot = region.LEDGER_HEADER_SIZE
    shares.poke_mapped(share, "ledger", slot + region.SlotLayout.overhead_bytes.offset, cost)
    shares.poke_mapped(share, "ledger", slot + region.SlotLayout.measured_contexts.offset, 1)
    assert probe.info()[0] == 2048 * MIB - 10 * MIB - cost
    probe.ok("cuCtxCreate_v2", "&6", 0, 0)
    assert probe.info()[0] == 2048 * MIB - 10 * MIB - cost - 100 * MIB, "a context since then: its estimate"


LOADS = [
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuLibraryLoadData",
]


@pytest.mark.parametrize("symbol", [*LOADS, "cuLibraryLoadFromFile"])
def test_code_is_loaded_only_while_there_is_room(
    node: Sandbox, share: Path, start: Start, symbol: str
) -> None:
    probe, bare = start(node), start(node, bare=True)
    for one in (probe, bare):
        one.begin()
    answer = bare.call(symbol, "&9", 0, 0, 0, 0, 0, 0, 0).result
    assert probe.call(symbol, "&9", 0, 0, 0, 0, 0, 0, 0).result == answer != OUT_OF_MEMORY
    pointer = probe.alloc(LIMIT)[1]
    full = probe.call(symbol, "&9", 0, 0, 0, 0, 0, 0, 0)
    assert (full.result, full.cells) == (OUT_OF_MEMORY, {})
    assert probe.free(pointer) == SUCCESS
    assert probe.call(symbol, "&9", 0, 0, 0, 0, 0, 0, 0).result == answer


def test_context_limit_that_does_not_fit_is_refused(node: Sandbox, share: Path, start: Start) -> None:
    probe = start(node)
    probe.begin()
    heap = 2  # CU_LIMIT_MALLOC_HEAP_SIZE
    assert probe.call("cuCtxSetLimit", heap, LIMIT + 16 * MIB).result == OUT_OF_MEMORY
    assert shares.usage(share).used_bytes == 0
    probe.ok("cuCtxSetLimit", heap, 8 * MIB + LIMIT)
    assert probe.alloc(1)[0] == OUT_OF_MEMORY
    taken = node.container()
    assert taken["used"] == LIMIT + node.context_bytes() == taken["peak"]
