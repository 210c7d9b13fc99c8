# SPDX-License-Identifier: Apache-2.0
"""A wheel carries the library for tenants, in a folder named by its content, and the agent finds it there."""

import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
LIBRARY: Final = ROOT / "build" / "shim" / "libaliquot.so"
_SHOW: Final = """
from pathlib import Path
from aliquot_agent.library import default_source
print(default_source(Path("absent")))
"""


def wheel(folder: Path, libraries: Path) -> Path:
    """Built from this tree."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(folder), str(ROOT)]
    environment = os.environ | {"ALIQUOT_LIBRARIES": str(libraries)}
    subprocess.run(command, check=True, env=environment, timeout=120)
    [made] = folder.glob("*.whl")
    return made


def found(site: Path) -> Path:
    """The library that the agent of `site` puts into containers where its image has none."""
    environment = os.environ | {"PYTHONPATH": str(site)}
    show = subprocess.run(
        [sys.executable, "-c", _SHOW], check=True, env=environment, capture_output=True, text=True, timeout=60
    )
    return Path(show.stdout.strip())


def test_the_library_in_the_wheel_is_found_unless_it_was_changed(tmp_path: Path) -> None:
    assert LIBRARY.exists(), "run `make shim`"
    given = tmp_path / "libraries" / platform.machine() / LIBRARY.name
    given.parent.mkdir(parents=True)
    given.write_bytes(LIBRARY.read_bytes())
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel(tmp_path, tmp_path / "libraries")) as archive:
        archive.extractall(site)
    digest = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()[:16]
    carried = site / "aliquot_agent" / "lib" / platform.machine() / digest / LIBRARY.name
    assert carried.read_bytes() == LIBRARY.read_bytes()
    assert found(site) == carried
    carried.write_bytes(b"changed")
    assert found(site) == Path("absent")
