# SPDX-License-Identifier: Apache-2.0
"""Every name at its own address, and cuGetProcAddress by base name, version and stream."""

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

from shim.sim.tests.simnode import REPOSITORY, Node

LEGACY, PER_THREAD = 1, 2


def exported(library: Path) -> dict[str, int]:
    """Defined dynamic symbols and their addresses."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in text.splitlines())
    return {name: int(address, 16) for address, kind, name in rows if kind in "TW"}


def headers() -> Path:
    given = os.environ.get("CUDA_INCLUDE")
    found = (
        [Path(given)] if given else list(REPOSITORY.glob(".venv/lib/python3*/site-packages/nvidia/*/include"))
    )
    return found[0]


@pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_library_looks_like_the_drivers(build: Path, name: str) -> None:
    symbols = exported(build / name)
    assert all(symbol.startswith(("cu", "nvml")) for symbol in symbols), "nothing else is exported"
    assert len(set(symbols.values())) == len(symbols), "each name has its own address"
    assert not any("@" in symbol for symbol in symbols), "no symbol versions"
    dynamic = subprocess.run(
        ["readelf", "-d", build / name], capture_output=True, text=True, check=True
    ).stdout
    assert f"soname: [{name}]" in dynamic
    assert "SYMBOLIC" in dynamic
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert all(re.match(r"lib(c|pthread)\.so|ld-linux", name) for name in needed)


def test_every_name_of_the_headers_is_exported(build: Path) -> None:
    cuda = (headers() / "cuda.h").read_text()
    nvml = (headers() / "nvml.h").read_text()
    cuda_names = set(re.findall(r"CUresult\s+CUDAAPI\s+(cu[A-Z]\w*)\s*\(", cuda))
    nvml_names = set(re.findall(r"nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(", nvml))
    assert len(cuda_names) > 500
    assert len(nvml_names) > 400
    assert cuda_names <= exported(build / "libcuda.so.1").keys()
    assert nvml_names <= exported(build / "libnvidia-ml.so.1").keys()


@pytest.mark.parametrize(
    ("base", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, PER_THREAD, "cuMemAlloc_v2"),
        ("cuMemcpyHtoD", 13000, LEGACY, "cuMemcpyHtoD_v2"),
        ("cuMemcpyHtoD", 13000, PER_THREAD, "cuMemcpyHtoD_v2_ptds"),
        ("cuMemcpyHtoD", 6050, PER_THREAD, "cuMemcpyHtoD_v2"),
        ("cuMemPrefetchAsync", 8000, 0, "cuMemPrefetchAsync"),
        ("cuMemPrefetchAsync", 8000, PER_THREAD, "cuMemPrefetchAsync_ptsz"),
        ("cuMemPrefetchAsync", 12020, 0, "cuMemPrefetchAsync_v2"),
        ("cuMemPrefetchAsync", 13000, PER_THREAD, "cuMemPrefetchAsync_v2_ptsz"),
        ("cuCtxGetDevice", 12090, 0, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"),
        ("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, 0, "cuCtxCreate_v4"),
        ("cuGraphInstantiate", 11040, 0, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuStreamBeginCapture", 10010, PER_THREAD, "cuStreamBeginCapture_v2_ptsz"),
        ("cuDeviceGetUuid", 11040, 0, "cuDeviceGetUuid_v2"),
        ("cuEventElapsedTime", 12080, 0, "cuEventElapsedTime_v2"),
        ("cuProfilerStart", 12000, 0, "cuProfilerStart"),
        ("cuGLCtxCreate", 12000, 0, "cuGLCtxCreate_v2"),
    ],
)
def test_entry_point_by_version_and_stream(
    build: Path, base: str, version: int, flags: int, symbol: str
) -> None:
    library = ctypes.CDLL(str(build / "libcuda.so.1"))
    expected = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    name = base.encode()
    found, status = ctypes.c_void_p(), ctypes.c_int(-1)
    arguments = (ctypes.c_int(version), ctypes.c_uint64(flags))
    assert library.cuGetProcAddress_v2(name, ctypes.byref(found), *arguments, ctypes.byref(status)) == 0
    assert (found.value, status.value) == (expected, 0)
    old = ctypes.c_void_p()
    assert library.cuGetProcAddress(name, ctypes.byref(old), *arguments) == 0
    assert old.value == expected


@pytest.mark.parametrize(
    ("base", "version", "status"),
    [
        ("cuNonsense", 13000, 1),
        ("cuMemAlloc_v2", 13000, 1),
        ("cuMemAllocAsync", 11010, 2),
        ("cuInit", 1000, 2),
    ],
)
def test_missing_entry_points_are_told_apart(node: Node, base: str, version: int, status: int) -> None:
    probe = node.probe()
    answer = probe.call("cuGetProcAddress_v2", base, {"out": 7}, version, 0, {"bytes": "ffffffff"})
    assert (answer.code, answer.outputs) == (0, [0, f"0{status}000000"])
    old = probe.call("cuGetProcAddress", base, {"out": 7}, version, 0)
    assert (old.code, old.outputs) == (500, [7])


@pytest.mark.parametrize(
    ("version", "flags"),
    [(13010, 0), (-1, 0), (13000, 3), (13000, 4)],
    ids=["newer", "negative", "both", "unknown"],
)
def test_bad_look_ups_are_invalid_values(node: Node, version: int, flags: int) -> None:
    probe = node.probe()
    answer = probe.call("cuGetProcAddress_v2", "cuInit", {"out": 7}, version & 0xFFFFFFFF, flags, {"out": 9})
    assert (answer.code, answer.outputs) == (1, [7, 9])
