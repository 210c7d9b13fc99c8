# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's headers of every CUDA release: fetched once, pinned by headers.txt, kept in the cache.

`python -m shim.headers` fetches what is missing and prints each release's folder. They are never committed.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PINS: Final = Path(__file__).with_name("headers.txt")
_PLATFORMS: Final = ("manylinux1", "manylinux2014")
"""Headers are the same for all architectures; the pinned wheels are those of x86-64."""
_FETCH_TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True)
class Pin:
    """One wheel: `package` with its version, `digest` as sha256:HEX."""

    package: str
    digest: str


@cache
def pins() -> Mapping[str, tuple[Pin, ...]]:
    """Release -> its wheels, oldest release first."""
    found: dict[str, list[Pin]] = {}
    for line in PINS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        release, package, digest = line.split()
        found.setdefault(release, []).append(Pin(package, digest))
    return {release: tuple(found[release]) for release in sorted(found, key=_order)}


def folder(release: str) -> Path:
    """The folder with cuda.h, cudaTypedefs.h and nvml.h of `release` ("12.4"), fetched if need be."""
    target = _cache() / release / _stamp(release)
    if not target.is_dir():
        _fetch(pins()[release], target)
    return target


def folders() -> Mapping[str, Path]:
    """Release -> folder, oldest first."""
    return {release: folder(release) for release in pins()}


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _cache() -> Path:
    return Path(os.environ.get("ALIQUOT_CACHE", Path.home() / ".cache/aliquot")) / "headers"


def _stamp(release: str) -> str:
    """Another pin, another folder: what is there is never stale."""
    return "-".join(pin.digest.removeprefix("sha256:")[:8] for pin in pins()[release])


def _fetch(wheels: tuple[Pin, ...], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wanted, unpacked = Path(scratch) / "wanted.txt", Path(scratch) / "unpacked"
        wanted.write_text("".join(f"{pin.package} --hash={pin.digest}\n" for pin in wheels))
        platforms = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += [*platforms, "--require-hashes", "--requirement", str(wanted), "--dest", scratch]
        subprocess.run(command, check=True, timeout=_FETCH_TIMEOUT_S, stdout=sys.stderr)
        for wheel in Path(scratch).glob("*.whl"):
            _unpack(wheel, unpacked)
        if not target.is_dir():  # two that fetch at once: the first one's stays
            try:
                unpacked.rename(target)
            except OSError:
                if not target.is_dir():
                    raise


def _unpack(wheel: Path, into: Path) -> None:
    """The top-level headers of the wheel's include folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            header = re.search(r"/include/(\w+\.h)$", name)
            if header:
                into.mkdir(exist_ok=True)
                (into / header[1]).write_bytes(archive.read(name))


def main() -> int:
    for release, path in folders().items():
        print(release, path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
