# SPDX-License-Identifier: Apache-2.0
"""Libraries of each driver branch export and look up what the headers of its CUDA release name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shim import headers
from shim.sim.drivers import BRANCHES
from shim.sim.generate import cuda_names, lookup_table, nvml_names, typedef_versions
from shim.sim.tests.simnode import REPOSITORY, Node

NEWEST = list(headers.pins())[-1]


@pytest.fixture(scope="module")
def drivers(build: Path) -> Path:
    """Folder with one folder of libraries for each branch."""
    include = next((Path(sys.prefix) / "lib").glob("python3*/site-packages/nvidia/*/include"))
    variables = [
        f"BUILD={build}",
        f"CUDA_INCLUDE={include}",
        f"NVML_INCLUDE={include}",
        f"PYTHON={sys.executable}",
    ]
    command = ["make", "-s", "-C", str(REPOSITORY / "shim/sim"), "drivers", *variables]
    subprocess.run(command, check=True, timeout=300, env=os.environ | {"PYTHONPATH": str(REPOSITORY)})
    return build / "drivers"


def exported(library: Path) -> set[str]:
    table = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    return {line.split()[2] for line in table.stdout.splitlines()}


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_exports_the_names_of_its_release(drivers: Path, branch: str) -> None:
    include = headers.folder(BRANCHES[branch])
    assert exported(drivers / branch / "libcuda.so.1") == cuda_names("cc", include)
    assert exported(drivers / branch / "libnvidia-ml.so.1") == nvml_names("cc", include)


FORGOTTEN = {"cuLibraryEnumerateKernels", "cuLibraryGetKernelCount", "cuModuleEnumerateFunctions"}
FORGOTTEN |= {"cuModuleGetFunctionCount", "cuMemBatchDecompressAsync", "cuGreenCtxGetId", "cuLaunchHostFunc"}
FORGOTTEN |= {"cuStreamBeginCaptureToCig", "cuStreamEndCaptureToCig", "cuLaunchKernelEx"}
FORGOTTEN |= {"cuOccupancyMaxActiveClusters", "cuOccupancyMaxPotentialClusterSize"}
"""Bases that cudaTypedefs.h of some release lacks and later ones date back to it."""


@pytest.mark.parametrize("release", headers.pins())
def test_the_newest_table_holds_those_of_all_releases(release: str) -> None:
    major, minor = release.split(".")
    cuda = int(major) * 1000 + int(minor) * 10
    include, newest = headers.folder(release), headers.folder(NEWEST)
    table = lookup_table(cuda_names("cc", include), typedef_versions(include))
    full = lookup_table(cuda_names("cc", newest), typedef_versions(newest))
    of_then = {entry for entry in table if entry.version <= cuda}
    wanted = {entry for entry in full if entry.version <= cuda}
    assert of_then <= wanted
    assert {entry.base for entry in wanted - of_then} <= FORGOTTEN


@pytest.mark.parametrize("branch", BRANCHES)
def test_programs_run_on_every_branch(drivers: Path, empty_node: Node, branch: str) -> None:
    made = empty_node.tool("init", "--gpu", "l4", "--node", "a", "--driver", branch)
    assert made.returncode == 0, made.stderr
    node = Node(root=empty_node.root, build=drivers / branch)
    probe = node.probe()
    try:
        probe.start()
        probe.allocate(1 << 20)
        assert probe.call("cuDeviceGetUuid_v2", {"bytes": "00" * 16}, 0).code == 0
    finally:
        probe.kill()
