# SPDX-License-Identifier: Apache-2.0
"""The library as a file: what it exports and needs, how it is hardened, built alike anywhere."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from shim.tests.sandbox import BUILD, PYTHON, ROOT, SHIM

_SHIM: Final = ROOT / "shim"
_MACHINES: Final = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
_NEWEST_GLIBC: Final = (2, 17)
_LARGEST: Final = 200 * 1024


def _make(folder: Path, target: str, *settings: str, sources: Path = _SHIM) -> Path:
    """Builds into `folder`."""
    command = ["make", "-s", "-C", str(sources), target, f"BUILD={folder}", f"PYTHON={PYTHON}", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def releases() -> dict[str, Path]:
    """Machine -> release build, that of `make shim-release`; made here if it is not there or older."""
    folder = _make(BUILD / "shim", "release")
    return {machine: folder / "release" / machine / "libaliquot.so" for machine in _MACHINES}


@pytest.fixture(params=["this-machine", *_MACHINES])
def library(request: pytest.FixtureRequest, releases: dict[str, Path]) -> Path:
    return releases.get(request.param, SHIM)


def _readelf(library: Path, *what: str) -> str:
    command = ["readelf", "-W", *what, str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def _symbols(library: Path) -> list[tuple[str, bool]]:
    """Dynamic symbols with their versions; whether each is defined."""
    rows = re.findall(r"^ +\d+: \w+ +\d+ \w+ +\w+ +\w+ +(\w+) (\S+)", _readelf(library, "--dyn-syms"), re.M)
    return [(name, section != "UND") for section, name in rows]


def test_exports_nothing_but_the_hooked_names(library: Path) -> None:
    exported = {name for name, defined in _symbols(library) if defined}
    hooks = (_SHIM / "src" / "hooks.def").read_text()
    named = set(re.findall(r"^AQ_(?:HOOK|GATE|LOAD)\(\w+, (\w+)\)", hooks, re.MULTILINE))
    assert exported == named | {"dlsym", "dlopen", "dlmopen"}, "and unversioned: satisfies every version"


def test_needs_no_driver_and_little_else(library: Path) -> None:
    dynamic = _readelf(library, "-d")
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-aarch64.so.1"}
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_is_hardened(library: Path) -> None:
    dynamic, segments = _readelf(library, "-d"), _readelf(library, "-l")
    assert "TEXTREL" not in dynamic
    assert re.search(r"FLAGS_1\).*NOW", dynamic)
    assert re.search(r"GNU_STACK +\S+ \S+ \S+ \S+ \S+ RW +\S", segments), "no executable stack"
    assert "GNU_RELRO" in segments
    assert not re.search(r"LOAD .* RWE ", segments)
    assert any(name.startswith("__stack_chk_fail") for name, _ in _symbols(library))


def test_is_small(library: Path) -> None:
    assert library.stat().st_size < _LARGEST


@pytest.mark.parametrize("machine", _MACHINES)
def test_release_runs_on_glibc_2_17(releases: dict[str, Path], machine: str) -> None:
    library = releases[machine]
    assert re.search(rf"Machine: +{_MACHINES[machine]}$", _readelf(library, "-h"), re.MULTILINE)
    versions = re.findall(r"@GLIBC_(\d+)\.(\d+)", _readelf(library, "--dyn-syms"))
    assert versions
    assert max((int(major), int(minor)) for major, minor in versions) <= _NEWEST_GLIBC


@pytest.mark.parametrize("machine", _MACHINES)
def test_release_suits_kernels_with_large_pages(releases: dict[str, Path], machine: str) -> None:
    """Pages of 64 KiB are usual on aarch64."""
    aligned = re.findall(r"LOAD .* (0x\w+)$", _readelf(releases[machine], "-l"), re.MULTILINE)
    assert min(int(page, 16) for page in aligned) >= (0x10000 if machine == "aarch64" else 0x1000)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_builds_with_compilers_at_hand(tmp_path: Path, compiler: str) -> None:
    """Warnings are errors. The clang that is always there is ziglang's, as in the release build."""
    found = shutil.which(compiler) or shutil.which(f"{compiler}-14")
    if found is None:
        pytest.skip(f"no {compiler} here; the release build uses ziglang's clang")
    _make(tmp_path, "all", f"CC={found}", "CFLAGS=-O1", "LTO=")


def test_same_bytes_from_any_folder(tmp_path: Path, releases: dict[str, Path]) -> None:
    builds = []
    for name in ("one", "another/deeper"):
        sources = tmp_path / name / "shim"
        shutil.copytree(_SHIM / "src", sources / "src")
        shutil.copytree(_SHIM / "include", sources / "include")
        shutil.copy(_SHIM / "Makefile", sources)
        builds.append(_make(tmp_path / name / "build", "all", sources=sources) / "libaliquot.so")
    assert builds[0].read_bytes() == builds[1].read_bytes()
    again = _make(tmp_path / "release", "release", sources=tmp_path / "another/deeper/shim") / "release"
    for machine, library in releases.items():
        assert (again / machine / "libaliquot.so").read_bytes() == library.read_bytes()
