# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tests.unit.agent.kit import FakeGpus, FakeServer, Node, make_gpu


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with two GPUs of 24 GiB."""
    return Node(root=tmp_path, gpus=FakeGpus(gpus=[make_gpu(0), make_gpu(1)]), server=FakeServer())
