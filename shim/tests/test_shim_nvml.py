# SPDX-License-Identifier: Apache-2.0
"""NVML inside the container: the share's memory and the share's own processes."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shim.tests import shares
from shim.tests.probe import NVML_INSUFFICIENT_SIZE, SUCCESS, Probe
from shim.tests.sandbox import MIB, PYTHON, Sandbox

Start = Callable[..., Probe]
LIMIT: Final = 1024 * MIB
MEMORY_V2: Final = 40 | 2 << 24


@pytest.fixture
def share(node: Sandbox) -> Path:
    gpu = node.books()["gpus"][0]
    return shares.make(node, gpu=str(gpu["uuid"]), limit=LIMIT, estimate=int(gpu["context"]))


def begin(probe: Probe) -> int:
    """nvmlInit; the handle of GPU 0."""
    probe.ok("nvmlInit_v2")
    probe.reset(40)
    return probe.ok("nvmlDeviceGetHandleByIndex_v2", 0, "&40").cells[40]


def entries(probe: Probe, symbol: str, handle: int, size: int) -> dict[int, int]:
    """A process list as {pid: bytes}."""
    room = 16
    probe.command(f"!set 50 {room}")
    words = room * size // 8
    for cell in range(60, 60 + words):
        probe.reset(cell)
    cells = probe.ok(symbol, handle, "&50", "&60").cells
    count = cells[50]
    assert count <= room
    raw = b"".join(struct.pack("@Q", cells.get(60 + i, 0)) for i in range(words))
    return dict(struct.unpack_from("@I4xQ", raw, index * size) for index in range(count))


def test_memory_is_the_shares(node: Sandbox, share: Path, start: Start) -> None:
    cost = node.context_bytes()
    probe = start(node)
    probe.begin()
    probe.alloc(100 * MIB)
    handle = begin(probe)
    used = cost + 100 * MIB
    assert probe.ok("nvmlDeviceGetMemoryInfo", handle, "&41").cells == {41: LIMIT, 42: LIMIT - used, 43: used}
    probe.command(f"!set 44 {MEMORY_V2 | 0xA5A5A5A5 << 32}")
    v2 = probe.ok("nvmlDeviceGetMemoryInfo_v2", handle, "&44").cells
    assert (v2[45], v2[46], v2[47], v2[48]) == (LIMIT, 0, LIMIT - used, used)


def test_wrong_version_is_refused_by_the_driver_itself(node: Sandbox, share: Path, start: Start) -> None:
    probe, bare = start(node), start(node, bare=True)
    answers = []
    for one in (probe, bare):
        handle = begin(one)
        one.command("!set 44 12345")
        answers.append(one.call("nvmlDeviceGetMemoryInfo_v2", handle, "&44"))
    assert answers[0] == answers[1]
    assert answers[0].result != SUCCESS


def test_without_a_limit_the_answer_is_the_drivers(node: Sandbox, start: Start) -> None:
    gpu = node.books()["gpus"][0]
    shares.make(node, gpu=str(gpu["uuid"]), limit=0, unlimited=True)
    probe, bare = start(node), start(node, bare=True)
    ours = probe.ok("nvmlDeviceGetMemoryInfo", begin(probe), "&41").cells
    assert ours == bare.ok("nvmlDeviceGetMemoryInfo", begin(bare), "&41").cells


@pytest.mark.parametrize(
    ("symbol", "size"),
    [
        ("nvmlDeviceGetComputeRunningProcesses", 16),
        ("nvmlDeviceGetComputeRunningProcesses_v2", 24),
        ("nvmlDeviceGetComputeRunningProcesses_v3", 24),
    ],
)
def test_processes_are_the_shares_own(
    node: Sandbox, share: Path, start: Start, symbol: str, size: int
) -> None:
    cost = node.context_bytes()
    one, two, stranger = start(node), start(node), start(node, bare=True)
    for process in (one, two, stranger):
        process.begin()
    one.alloc(10 * MIB)
    handle = begin(two)
    assert entries(two, symbol, handle, size) == {one.pid: cost + 10 * MIB, two.pid: cost}
    two.command("!set 50 1")
    short = two.call(symbol, handle, "&50", "&60")
    assert (short.result, short.cells[50]) == (NVML_INSUFFICIENT_SIZE, 2)
    two.command("!set 50 0")
    assert two.call(symbol, handle, "&50", 0).result == NVML_INSUFFICIENT_SIZE


def test_pids_are_those_of_the_readers_namespace(node: Sandbox, share: Path, start: Start) -> None:
    inside, outside = start(node, new_pids=True), start(node)
    inside.begin()
    outside.begin()
    handle = begin(inside)
    pid = int(inside.command("!pid"))
    assert list(entries(inside, "nvmlDeviceGetComputeRunningProcesses_v3", handle, 24)) == [pid]


def test_bad_handle_gets_the_drivers_error(node: Sandbox, share: Path, start: Start) -> None:
    probe, bare = start(node), start(node, bare=True)
    for symbol in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3"):
        answers = []
        for one in (probe, bare):
            begin(one)
            one.command("!set 50 1")
            answers.append(one.call(symbol, 0, "&50", "&60"))
        assert answers[0] == answers[1]
        assert answers[0].result != SUCCESS


@pytest.mark.parametrize("unlimited", [False, True])
def test_forked_child_may_go_on_asking(node: Sandbox, start: Start, unlimited: bool) -> None:
    gpu = node.gpu()
    shares.make(node, gpu=gpu, limit=0 if unlimited else LIMIT, unlimited=unlimited)
    probe = start(node)
    handle = begin(probe)
    before = probe.ok("nvmlDeviceGetMemoryInfo", handle, "&41").cells
    probe.command("!fork")
    for cell in (41, 42, 43):
        probe.reset(cell)
    assert probe.ok("nvmlDeviceGetMemoryInfo", handle, "&41").cells == before


_PYTHON_CLIENT: Final = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
memory2 = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
print(memory.total, memory.free, memory2.total, len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
"""


def test_nvidia_ml_py(node: Sandbox, share: Path) -> None:
    assert node.run(PYTHON, "-c", _PYTHON_CLIENT).stdout.split() == [str(LIMIT), str(LIMIT), str(LIMIT), "0"]
