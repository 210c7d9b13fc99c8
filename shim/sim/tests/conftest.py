# SPDX-License-Identifier: Apache-2.0
"""A simulated node per test, and C programs, built once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.sim.tests.simnode import HERE, REPOSITORY, Node


@pytest.fixture(scope="session")
def build() -> Path:
    path = Path(os.environ.get("ALIQUOT_SIM_BUILD", REPOSITORY / "build" / "sim"))
    assert (path / "libcuda.so.1").exists(), f"no simulated driver in {path}: run `make sim` first"
    return path


@pytest.fixture
def empty_node(tmp_path: Path, build: Path) -> Iterator[Node]:
    """A folder for a node that is not there yet."""
    node = Node(root=tmp_path / "node", build=build)
    yield node
    for probe in node.probes:
        if probe.popen.poll() is None:
            probe.kill()
    (node.root / "state").unlink(missing_ok=True)  # pytest keeps the folder, and this one is large


@pytest.fixture
def node(empty_node: Node) -> Node:
    """A node with one L4."""
    empty_node.init("l4")
    return empty_node


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory, build: Path) -> Path:
    """Folder of the C programs that use the driver."""
    folder = tmp_path_factory.mktemp("clients")
    include = next((Path(sys.prefix) / "lib").glob("python3*/site-packages/nvidia/*/include"))
    options = [
        "-isystem",
        str(include),
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-Wl,-z,now",
    ]
    for name in ("storm", "steps", "families", "launches"):
        source = str(HERE / f"{name}.c")
        subprocess.run(
            ["cc", *options, "-o", str(folder / name), source, str(build / "libcuda.so.1")], check=True
        )
    return folder


@pytest.fixture(scope="session")
def storm(clients: Path) -> Path:
    """The hammer (storm.c)."""
    return clients / "storm"


@pytest.fixture(scope="session")
def steps(clients: Path) -> Path:
    """The single-stepper (steps.c)."""
    return clients / "steps"


@pytest.fixture(scope="session")
def families(clients: Path) -> Path:
    """The hammer for all families of memory (families.c)."""
    return clients / "families"


@pytest.fixture(scope="session")
def launches(clients: Path) -> Path:
    """Threads that launch, capture and replay (launches.c)."""
    return clients / "launches"
