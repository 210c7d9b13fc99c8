# SPDX-License-Identifier: Apache-2.0
"""The program `measure`, for whoever times driver calls with it."""

import subprocess
from pathlib import Path
from typing import Final

from shim.tests.sandbox import ROOT

_SOURCE: Final = Path(__file__).with_name("measure.c")
_FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", f"-I{ROOT / 'shim' / 'src'}")


def build(program: Path) -> str:
    """Makes `program`, which finds the driver when it runs; its path."""
    command = ["cc", *_FLAGS, "-o", str(program), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return str(program)


def lines(text: str) -> dict[str, float]:
    """Its output as numbers."""
    return {name: float(value) for name, value in (line.split() for line in text.splitlines())}
