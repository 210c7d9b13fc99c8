# SPDX-License-Identifier: Apache-2.0
"""Version scripts for libraries that export what a driver branch does, from the headers of its CUDA release.

`python -m shim.sim.drivers OUT` writes OUT/<branch>/{cuda,nvml}.map; the Makefile's target `drivers` links
with them.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shim import headers
from shim.sim.generate import cuda_names, nvml_names

BRANCHES: Final[Mapping[str, str]] = {"535": "12.2", "570": "12.8", "580": "13.0", "595": "13.2"}
"""Driver branch -> the CUDA release that it speaks (profiles.c has the same)."""


def version_script(names: set[str]) -> str:
    """Export exactly these; anonymous, so that symbols have no versions, as NVIDIA's have none."""
    lines = "".join(f"    {name};\n" for name in sorted(names))
    return f"{{\n  global:\n{lines}  local:\n    *;\n}};\n"


def write(branch: str, folder: Path) -> None:
    include = headers.folder(BRANCHES[branch])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cuda.map").write_text(version_script(cuda_names("cc", include)), encoding="utf-8")
    (folder / "nvml.map").write_text(version_script(nvml_names("cc", include)), encoding="utf-8")


def main() -> None:
    for branch in BRANCHES:
        write(branch, Path(sys.argv[1]) / branch)


if __name__ == "__main__":
    main()
