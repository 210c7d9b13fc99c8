# SPDX-License-Identifier: Apache-2.0
"""What a call costs does not grow with what the process holds."""

from pathlib import Path

import pytest

from shim.tests import shares
from shim.tests.conftest import Clients
from shim.tests.sandbox import MIB, Sandbox


@pytest.fixture
def share(node: Sandbox) -> Path:
    return shares.make(node, gpu=node.gpu(), limit=2048 * MIB)


def test_mapped_memory_is_given_back_as_fast_with_much_on_record(
    node: Sandbox, share: Path, clients: Clients
) -> None:
    little, much = map(int, node.run(clients.linked("remap"), "100000").stdout.split())
    assert much < 8 * little
