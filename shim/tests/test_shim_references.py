# SPDX-License-Identifier: Apache-2.0
"""References to virtual memory, taken and given back by several threads: each counts once."""

from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.conftest import Clients
from shim.tests.sandbox import MIB, Sandbox
from shim.tests.test_shim_families import walk

LIMIT: Final = 2048 * MIB


@pytest.fixture
def share(node: Sandbox) -> Path:
    return shares.make(node, gpu=node.gpu(), limit=LIMIT)


def test_memory_is_charged_until_its_last_reference_is_released(
    node: Sandbox, share: Path, clients: Clients
) -> None:
    steps, differences = walk(node, clients.linked("retained"), "retained", share=share)
    assert steps == ["retained: 0"]
    assert differences == []
