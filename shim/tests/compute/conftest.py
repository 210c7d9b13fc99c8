# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the programs of this folder, built once, and a node to run them on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.tests.compute.nodes import SOURCE, Node, build


@pytest.fixture(scope="session")
def tenant(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("tenant"))


@pytest.fixture(scope="session")
def oddities(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("oddities"), SOURCE.with_name("oddities.c"))


@pytest.fixture
def gpu(tmp_path: Path, tenant: str) -> Iterator[Node]:
    """A node with one H100."""
    with Node(folder=tmp_path, program=tenant) as node:
        yield node
