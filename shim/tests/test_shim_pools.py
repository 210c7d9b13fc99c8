# SPDX-License-Identifier: Apache-2.0
"""Pools in several threads at once: one record for each pool, whoever sees it first, and none for long."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from aliquot_agent import region
from shim.tests import shares
from shim.tests.conftest import Clients
from shim.tests.probe import SUCCESS, Probe
from shim.tests.sandbox import MIB, Sandbox
from shim.tests.test_shim_families import walk

LIMIT: Final = 2048 * MIB
FAR_LIMIT: Final = 16384 * MIB


@pytest.fixture
def share(node: Sandbox) -> Path:
    return shares.make(node, gpu=node.gpu(), limit=LIMIT)


@pytest.mark.parametrize(("way", "times"), [("first", 8), ("switched", 1), ("destroyed", 2), ("code", 1)])
def test_books_are_the_drivers_own_after_a_race(
    node: Sandbox, share: Path, clients: Clients, way: str, times: int
) -> None:
    for _ in range(times):
        steps, differences = walk(node, clients.linked("pools"), way, share=share)
        assert steps == [f"{way}: 0"]
        if way != "code":  # which counts on its own
            assert differences == []


def test_books_are_the_drivers_own_where_addresses_come_again(node: Sandbox, clients: Clients) -> None:
    """So far from the limit that the driver is not asked each time."""
    share = shares.make(node, gpu=node.gpu(), limit=FAR_LIMIT)
    steps, differences = walk(node, clients.linked("pools"), "reused", share=share)
    assert steps == ["reused: 0"]
    assert differences == []


@pytest.mark.parametrize("slot", [7, 0], ids=["whose slot is empty", "whose slot is another's now"])
def test_right_to_pass_the_limit_ends_with_its_holder(
    node: Sandbox, share: Path, start: Callable[..., Probe], slot: int
) -> None:
    probe = start(node)
    probe.begin()
    probe.ok("cuMemAllocAsync", "&1", MIB, 0)
    rest = LIMIT - shares.usage(share).used_bytes
    assert probe.alloc(rest)[0] == SUCCESS
    shares.poke_mapped(share, "ledger", region.LedgerLayout.overdraft.offset, region.SLOTS + slot)
    assert probe.call("cuMemAllocAsync", "&2", MIB, 0).result == SUCCESS, "the pool has room for it"
