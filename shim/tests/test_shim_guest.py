# SPDX-License-Identifier: Apache-2.0
"""The shim is a silent guest: programs notice nothing of it but the limit."""

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.conftest import LIMIT, Clients
from shim.tests.probe import OUT_OF_MEMORY, SUCCESS, Probe
from shim.tests.sandbox import PYTHON, SHIM, SIM, Sandbox

Start = Callable[..., Probe]


def _with_preload(command: list[str], library: str) -> str:
    return subprocess.run(
        command, env={"LD_PRELOAD": library}, check=True, capture_output=True, text=True, timeout=30
    ).stdout


def test_program_without_cuda_makes_the_same_system_calls_as_with_an_empty_library(clients: Clients) -> None:
    quiet = clients.build("quiet")
    empty = clients.build("empty.so", "-shared", "-fPIC", "-Wl,-z,relro,-z,now", source="empty.c")
    trace = clients.build("trace")
    ours, theirs = (Counter(_with_preload([trace, quiet], library).split()) for library in (str(SHIM), empty))
    assert ours - theirs == Counter(), "no system call of its own"


def test_program_without_cuda_allocates_nothing_more(clients: Clients) -> None:
    quiet = clients.build("quiet")
    empty = clients.build("empty.so", "-shared", "-fPIC", "-Wl,-z,relro,-z,now", source="empty.c")
    assert _with_preload([quiet], str(SHIM)) == _with_preload([quiet], empty)


def test_works_through_ld_so_preload_in_an_empty_environment(
    node: Sandbox, share: Path, start: Start
) -> None:
    node.through_file = True
    environment = {"ALIQUOT_SIM_ROOT": str(node.node), "ALIQUOT_SIM_GROUP": node.group}
    probe = start(node, libraries=(str(SIM / "libcuda.so.1"),), env=environment)
    probe.begin()
    assert probe.alloc(LIMIT + 1)[0] == OUT_OF_MEMORY
    assert probe.alloc(LIMIT)[0] == SUCCESS


MISUSE: Final[list[tuple[str, list[tuple[str, tuple[int | str, ...]]]]]] = [
    ("before-init", [
        ("cuMemAlloc_v2", ("&1", 4096)), ("cuMemAlloc_v2", (0, 4096)), ("cuMemAlloc", ("&1", 4096)),
        ("cuMemAllocPitch_v2", ("&1", "&2", 64, 64, 4)), ("cuMemAllocManaged", ("&1", 4096, 1)),
        ("cuMemFree_v2", (0,)), ("cuMemFree_v2", (4096,)), ("cuMemGetInfo_v2", ("&1", "&2")),
        ("cuDeviceTotalMem_v2", ("&1", 0)), ("cuDevicePrimaryCtxRetain", ("&1", 0)),
        ("cuDevicePrimaryCtxRelease_v2", (0,)), ("cuCtxCreate_v2", ("&1", 0, 0)), ("cuCtxDestroy_v2", (0,)),
        ("nvmlDeviceGetMemoryInfo", (0, "&1")),
    ]),
    ("no-context", [
        ("cuInit", (0,)), ("cuInit", (1,)), ("cuMemAlloc_v2", ("&1", 4096)), ("cuMemAlloc_v2", (0, 4096)),
        ("cuMemAlloc_v2", ("&1", 0)), ("cuMemAlloc_v2", (0, 0)), ("cuMemAlloc", ("&1", 4096)),
        ("cuMemAllocPitch_v2", ("&1", "&2", 64, 64, 3)), ("cuMemAllocPitch_v2", ("&1", "&2", 0, 64, 4)),
        ("cuMemAllocManaged", ("&1", 4096, 0)), ("cuMemFree_v2", (0,)), ("cuMemFree_v2", (4096,)),
        ("cuMemGetInfo_v2", ("&1", "&2")), ("cuCtxDestroy_v2", (0,)), ("cuDevicePrimaryCtxRelease_v2", (0,)),
        ("cuDevicePrimaryCtxRetain", ("&1", 99)), ("cuDevicePrimaryCtxRetain", ("&1", -1)),
        ("cuDevicePrimaryCtxRetain", (0, 0)), ("cuDevicePrimaryCtxReset_v2", (99,)),
        ("cuCtxCreate_v2", (0, 0, 0)), ("cuCtxCreate_v2", ("&1", 0, 99)), ("cuCtxCreate_v2", ("&1", 4096, 0)),
        ("cuDeviceTotalMem_v2", ("&1", 99)), ("cuDeviceTotalMem_v2", (0, 0)),
        ("cuDeviceTotalMem", ("&1", 99)),
    ]),
    ("in-a-context", [
        ("cuInit", (0,)), ("cuDevicePrimaryCtxRetain", ("&20", 0)), ("cuCtxSetCurrent", ("*20",)),
        ("cuMemAlloc_v2", ("&1", 0)), ("cuMemAlloc_v2", (0, 4096)), ("cuMemAlloc_v2", ("&1", 1 << 62)),
        ("cuMemAllocPitch_v2", ("&1", "&2", 64, 64, 3)), ("cuMemAllocPitch_v2", (0, "&2", 64, 64, 4)),
        ("cuMemAllocPitch_v2", ("&1", 0, 64, 64, 4)), ("cuMemAllocPitch_v2", ("&1", "&2", 0, 0, 4)),
        ("cuMemAllocManaged", ("&1", 4096, 0)), ("cuMemAllocManaged", ("&1", 4096, 77)),
        ("cuMemFree_v2", (0,)), ("cuMemFree_v2", (4096,)), ("cuMemFree_v2", (0xDEADBEEF000,)),
        ("cuMemAlloc_v2", ("&30", 4096)), ("cuMemFree_v2", ("*30",)), ("cuMemFree_v2", ("*30",)),
        ("cuMemAlloc_v2", ("&31", 4096)), ("cuMemFree", ("*31",)), ("cuMemGetInfo_v2", (0, 0)),
        ("cuCtxDestroy_v2", ("*20",)), ("cuCtxDestroy_v2", (1,)), ("cuMemFreeAsync", (0xDEADBEEF000, 0)),
        ("cuMemFreeAsync", (0, 0)), ("cuDevicePrimaryCtxRelease_v2", (0,)),
        ("cuDevicePrimaryCtxRelease_v2", (0,)), ("cuMemAlloc_v2", ("&1", 4096)),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("calls", [calls for _, calls in MISUSE], ids=[name for name, _ in MISUSE])
def test_misuse_gets_the_drivers_own_answers(
    node: Sandbox, share: Path, start: Start, calls: list[tuple[str, tuple[int | str, ...]]]
) -> None:
    probe, bare = start(node), start(node, bare=True)
    for number, (symbol, arguments) in enumerate(calls):
        ours, theirs = probe.call(symbol, *arguments), bare.call(symbol, *arguments)
        where = f"call {number}: {symbol}{arguments}"
        assert ours.result == theirs.result, where
        assert ours.cells.keys() == theirs.cells.keys(), f"{where}: outputs"
    assert shares.usage(share).used_bytes == 0
    assert shares.usage(share).denied <= 1, "only what is larger than the whole limit"


def test_error_number_of_the_program_is_kept(node: Sandbox, share: Path, clients: Clients) -> None:
    out = node.run(clients.build("error_number", "-ldl", source="error_number.c")).stdout
    assert out.split() == ["77"] * 5


_PYTHON_CLIENT: Final = """
from cuda.bindings import driver
def ok(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    return answer[1] if len(answer) == 2 else answer[1:]
ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
context = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(context))
free, total = ok(driver.cuMemGetInfo())
pointer = ok(driver.cuMemAlloc(free))
refused = driver.cuMemAlloc(1)[0]
ok(driver.cuMemFree(pointer))
print(total, free, int(refused), ok(driver.cuDeviceTotalMem(device)))
"""


def test_cuda_bindings_from_pypi(node: Sandbox, share: Path) -> None:
    done = node.run(PYTHON, "-c", _PYTHON_CLIENT)
    assert done.stdout.split() == [str(LIMIT), str(LIMIT), str(OUT_OF_MEMORY), str(LIMIT)]
    assert done.stderr == ""
