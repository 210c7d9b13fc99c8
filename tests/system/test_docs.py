# SPDX-License-Identifier: Apache-2.0
"""The commands in the documents work as they stand."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.binaries import helm
from tests.cluster.cluster import Cluster
from tests.system.images import ROOT
from tests.system.installation import Installation

PAGES: Final = (
    "docs/first-pod.md",
    "docs/node-agent.md",
    "docs/resize.md",
    "docs/cli.md",
    "docs/troubleshooting.md",
)
RUN_BY_OTHERS: Final = {
    "README.md",
    "CONTRIBUTING.md",
    "shim/README.md",
    "tests/cluster/README.md",
    "docs/images.md",
    "docs/workstation.md",
}
"""make, benchmark and test bed commands: the continuous integration run is made of them; the workstation's
are run by tests/unit/cli, those about images by test_images.py."""
RUN_BY_THE_CHARTS_TESTS: Final = {"docs/install.md", "docs/operating.md"}


def commands(page: str) -> list[str]:
    """The lines of a page's sh blocks."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def run_commands(page: str, bed: Cluster, *, which: slice = slice(None)) -> None:
    """Runs commands of a page as a reader would, with kubectl, helm and our own command at hand."""
    environment = bed.environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}:{helm().parent}"
    run_in(environment, page, which=which)


def run_in(environment: Mapping[str, str], page: str, *, which: slice = slice(None)) -> None:
    """Runs commands of a page in an environment."""
    for command in commands(page)[which]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{page}: {command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_work_in_order(aliquot: Installation, page: str) -> None:
    run_commands(page, aliquot.bed)


def test_every_page_with_commands_is_run_by_a_test() -> None:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    pages = subprocess.run(
        listing, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    ).stdout.split()
    assert {page for page in pages if commands(page)} == {*PAGES, *RUN_BY_OTHERS, *RUN_BY_THE_CHARTS_TESTS}
