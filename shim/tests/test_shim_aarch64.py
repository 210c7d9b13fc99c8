# SPDX-License-Identifier: Apache-2.0
"""The look-up on aarch64: its entry stubs and its ELF tables, run by qemu-user on this machine."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.probe import OUT_OF_MEMORY
from shim.tests.sandbox import BUILD, MIB, PYTHON, ROOT, SIM, Sandbox

_ROOT_OF_LIBC: Final = Path("/usr/aarch64-linux-gnu")
_ZIG: Final = (PYTHON, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.31")
_TARGET: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-pthread")
_SOURCES: Final = ROOT / "shim"
_BUILD_OF_SHIM: Final = BUILD / "shim"
_LIBRARY: Final = _BUILD_OF_SHIM / "release/aarch64/libaliquot.so"
LIMIT: Final = 512 * MIB


@pytest.fixture(scope="module", autouse=True)
def _emulator() -> None:
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("no qemu-aarch64 (package qemu-user)")
    if not (_ROOT_OF_LIBC / "lib/ld-linux-aarch64.so.1").exists():
        pytest.skip("no libc for aarch64 (package libc6-arm64-cross)")


def _run(*command: str, cwd: Path = _SOURCES, timeout: int = 600) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated driver and the clients for aarch64, beside the shim's release build."""
    folder = tmp_path_factory.mktemp("aarch64")
    _run("make", "-s", str(_LIBRARY), f"BUILD={_BUILD_OF_SHIM}", f"PYTHON={PYTHON}")
    sources = [path.name for path in (_SOURCES / "sim").glob("*.c")]
    driver = sorted(name for name in sources if not name.startswith(("nvml", "tool", "smi")))
    generated = [str(SIM / "gen" / name) for name in ("cuda_stubs.c", "cuda_table.c")]
    [headers] = {
        str(path.parent)
        for path in Path(PYTHON).parent.parent.glob("lib/*/site-packages/nvidia/*/include/cuda.h")
    }
    library = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    _run(*_ZIG, *_TARGET, *library, "-I.", "-isystem", headers, "-o", f"{folder}/libcuda.so.1", *driver,
         *generated, cwd=_SOURCES / "sim")  # fmt: skip
    clients = _SOURCES / "tests" / "clients"
    _run(*_ZIG, *_TARGET, "-Isrc", "-o", f"{folder}/ways", str(clients / "ways.c"), "-ldl")
    _run(*_ZIG, *_TARGET, "-Isrc", "-shared", "-fPIC", "-o", f"{folder}/plugin.so", str(clients / "plugin.c"),
         f"-L{folder}", "-l:libcuda.so.1")  # fmt: skip
    return folder


@pytest.mark.parametrize(
    "way",
    ["handle", "handle-lazy", "default", "default-without-driver", "next", "dlvsym", "libc-dlsym",
     "proc-address", "proc-address-11", "namespace", "plugin", "plugin-deepbind"],
)  # fmt: skip
def test_way_to_a_symbol(node: Sandbox, folder: Path, way: str) -> None:
    shares.make(node, gpu=node.gpu(), limit=LIMIT)
    inside = {
        "LD_PRELOAD": str(_LIBRARY),
        "LD_LIBRARY_PATH": str(folder),
        "ALIQUOT_SIM_ROOT": str(node.node),
        "ALIQUOT_SIM_GROUP": node.group,
    }
    emulator = ["qemu-aarch64", "-L", str(_ROOT_OF_LIBC)]
    emulator += [word for name, value in inside.items() for word in ("-E", f"{name}={value}")]
    plugin = [str(folder / "plugin.so")] if way.startswith("plugin") else []
    done = node.run(*emulator, str(folder / "ways"), way, *plugin, bare=True, check=False)
    assert (done.stdout, done.stderr) == (f"{_LIBRARY} {OUT_OF_MEMORY}\n", "")
