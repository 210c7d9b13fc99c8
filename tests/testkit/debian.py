# SPDX-License-Identifier: Apache-2.0
"""Debian's packages, fetched once and unpacked, not installed: installed, these start daemons."""

import os
import tempfile
from pathlib import Path

from tests.cluster.binaries import cache_dir, say
from tests.cluster.system import TestbedError, locked, run


def unpacked(name: str, *packages: str) -> Path:
    """The folder `name` of the cache, with what the packages would install below it."""
    folder = cache_dir() / name
    with locked(cache_dir() / f".{name}.lock"):
        if not folder.is_dir():
            say(f"fetching Debian's {', '.join(packages)}, once")
            with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=f".{name}.") as scratch:
                _fetch(Path(scratch), packages)
                os.rename(Path(scratch) / "unpacked", folder)
    return folder


def _fetch(scratch: Path, packages: tuple[str, ...]) -> None:
    download = ("apt-get", "download", "-qq", *packages)
    try:
        run(*download, cwd=scratch, timeout_s=300)
    except TestbedError:  # without lists, or with old ones
        run("apt-get", "update", "-qq", timeout_s=300)
        run(*download, cwd=scratch, timeout_s=300)
    for package in scratch.glob("*.deb"):
        run("dpkg-deb", "-x", package, scratch / "unpacked")
