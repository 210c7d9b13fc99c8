# SPDX-License-Identifier: Apache-2.0
"""NVML's figures by process: the share's own, under the reader's pids, and nothing of a neighbour's.

The simulated NVML has few of them, so a stand-in tells them here; who holds memory is the simulated driver's.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from aliquot_agent import region
from shim.tests import shares
from shim.tests.conftest import Clients
from shim.tests.probe import NVML_INSUFFICIENT_SIZE, SUCCESS, Probe
from shim.tests.sandbox import MIB, SIM, Sandbox

Start = Callable[..., Probe]
LIMIT: Final = 1024 * MIB
STRANGER: Final = 4_000_000
NVML_NOT_SUPPORTED: Final = 3
NVML_NOT_FOUND: Final = 6
ROOM: Final = 8
UNTOUCHED: Final = 0xA5A5A5A5A5A5A5A5
COUNT, ENTRIES = 50, 60

LISTS: Final = {
    "nvmlDeviceGetGraphicsRunningProcesses": ("@I4xQ", 0),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": ("@I4xQII", 0),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ("@I4xQII", 0),
    "nvmlDeviceGetMPSComputeRunningProcesses": ("@I4xQ", 0),
    "nvmlDeviceGetMPSComputeRunningProcesses_v2": ("@I4xQII", 0),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": ("@I4xQII", 0),
    "nvmlDeviceGetEncoderSessions": ("@8I", 1),
    "nvmlDeviceGetFBCSessions": ("@12I", 1),
    "nvmlDeviceGetAccountingPids": ("@I", 0),
}
"""Symbol -> its entries, and which field is the pid."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A reader of NVML and another process of its share; the stand-in lists both, and a stranger."""

    reader: Probe
    handle: int
    pids: tuple[int, int]
    """Reader and other, as the reader's pid namespace names them."""
    share: Path


def _host_pids(share: Path, host_pids: list[int]) -> None:
    """What the agent writes into the slots, in their order."""
    for index, pid in enumerate(host_pids):
        offset = region.LEDGER_HEADER_SIZE + index * region.SLOT_SIZE + region.SlotLayout.host_pid.offset
        shares.poke_mapped(share, "ledger", offset, pid)


def _standin(clients: Clients, folder: Path) -> str:
    library = clients.build(
        "libnvidia-ml.so.1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", source="nvml_standin.c"
    )
    folder.mkdir()
    (folder / "libnvidia-ml.so.1").symlink_to(library)
    return f"{folder}:{SIM}"


def _environment(node: Sandbox, path: str, listed: list[int]) -> dict[str, str]:
    return node.environment() | {
        "LD_LIBRARY_PATH": path,
        "NVML_UUID": node.gpu(),
        "NVML_PROCESSES": ",".join(map(str, listed)),
    }


@pytest.fixture(params=["same-namespace", "other-namespace"])
def scene(
    request: pytest.FixtureRequest, node: Sandbox, tmp_path: Path, clients: Clients, start: Start
) -> Scene:
    share = shares.make(node, gpu=node.gpu(), limit=LIMIT)
    path = _standin(clients, tmp_path / "nvml")
    apart = request.param == "other-namespace"
    if apart:  # pids of the container's namespace inside, other ones outside
        host = [31_001, 31_002]
        reader = start(node, new_pids=True, env=_environment(node, path, [host[0], STRANGER]))
        reader.begin()
        inside = int(reader.command("!pid"))
        _host_pids(share, host[:1])
        reader.ok("nvmlInit_v2")
        handle = reader.ok("nvmlDeviceGetHandleByIndex_v2", 0, "&40").cells[40]
        return Scene(reader, handle, (inside, 0), share)
    other = start(node)
    other.begin()
    reader = start(node, env=_environment(node, path, [other.pid, STRANGER]))
    reader.begin()
    _host_pids(share, [other.pid, reader.pid])
    reader.ok("nvmlInit_v2")
    handle = reader.ok("nvmlDeviceGetHandleByIndex_v2", 0, "&40").cells[40]
    return Scene(reader, handle, (other.pid, 0), share)


def _clear(probe: Probe, cells: int) -> None:
    for cell in range(ENTRIES, ENTRIES + cells):
        probe.reset(cell)


def _unpack(layout: str, cells: dict[int, int], count: int) -> list[tuple[int, ...]]:
    size = struct.calcsize(layout)
    words = -(-size * count // 8)
    raw = b"".join(struct.pack("@Q", cells.get(ENTRIES + i, UNTOUCHED)) for i in range(words))
    return [struct.unpack_from(layout, raw, index * size) for index in range(count)]


@pytest.mark.parametrize("symbol", LISTS)
def test_lists_hold_the_shares_own(scene: Scene, symbol: str) -> None:
    layout, field = LISTS[symbol]
    _clear(scene.reader, ROOM * 6)
    scene.reader.command(f"!set {COUNT} {ROOM}")
    cells = scene.reader.ok(symbol, scene.handle, f"&{COUNT}", f"&{ENTRIES}").cells
    entries = _unpack(layout, cells, cells[COUNT])
    assert [entry[field] for entry in entries] == [scene.pids[0]], "one listed, the stranger is not"
    scene.reader.command(f"!set {COUNT} 0")
    short = scene.reader.call(symbol, scene.handle, f"&{COUNT}", 0)
    assert (short.result, short.cells[COUNT]) == (NVML_INSUFFICIENT_SIZE, 1)


def test_process_utilization_is_the_shares_own(scene: Scene) -> None:
    _clear(scene.reader, ROOM * 4)
    scene.reader.command(f"!set {COUNT} {ROOM}")
    call = ("nvmlDeviceGetProcessUtilization", scene.handle)
    cells = scene.reader.ok(*call, f"&{ENTRIES}", f"&{COUNT}", 41).cells
    [(pid, seen, sm, memory, _, _)] = _unpack("@I4xQIIII", cells, cells[COUNT])
    assert (pid, seen, sm, memory) == (scene.pids[0], 42, 10, 1)
    scene.reader.command(f"!set {COUNT} 0")
    assert scene.reader.call(*call, 0, f"&{COUNT}", 0).result == NVML_INSUFFICIENT_SIZE


def test_processes_utilization_info_is_the_shares_own(scene: Scene) -> None:
    _clear(scene.reader, ROOM * 5)
    address = int(scene.reader.command(f"!address {ENTRIES}"))
    scene.reader.command(f"!set {COUNT} {1 << 24 | 24 | ROOM << 32}")
    scene.reader.command(f"!set {COUNT + 1} 0")
    scene.reader.command(f"!set {COUNT + 2} {address}")
    cells = scene.reader.ok("nvmlDeviceGetProcessesUtilizationInfo", scene.handle, f"&{COUNT}").cells
    [(_, pid, sm, *_)] = _unpack("@QIIIIIII4x", cells, cells[COUNT] >> 32)
    assert (pid, sm) == (scene.pids[0], 10)


@pytest.mark.parametrize(("mode", "size"), [(0, 1), (1, 1), (2, 1), (3, 1)])
def test_detail_list_is_the_shares_own(scene: Scene, mode: int, size: int) -> None:
    _clear(scene.reader, ROOM * 4)
    address = int(scene.reader.command(f"!address {ENTRIES}"))
    scene.reader.command(f"!set {COUNT} {1 << 24 | 24 | mode << 32}")
    scene.reader.command(f"!set {COUNT + 1} {ROOM}")
    scene.reader.command(f"!set {COUNT + 2} {address}")
    cells = scene.reader.ok("nvmlDeviceGetRunningProcessDetailList", scene.handle, f"&{COUNT}").cells
    pids = [entry[0] for entry in _unpack("@I4xQIIQ", cells, cells[COUNT + 1] & 0xFFFFFFFF)]
    assert scene.pids[0] in pids
    assert STRANGER not in pids
    if mode in (1, 2):
        assert len(pids) == size, "not what the ledger has, but what the driver says"


def test_utilization_is_the_shares_part(scene: Scene) -> None:
    answer = scene.reader.ok("nvmlDeviceGetUtilizationRates", scene.handle, "&41").cells[41]
    assert (answer & 0xFFFFFFFF, answer >> 32) == (10, 1), "the GPU: 95 and 90 percent"


@pytest.mark.parametrize(("kind", "result"), [(0, SUCCESS), (1, NVML_NOT_SUPPORTED), (2, NVML_NOT_SUPPORTED)])
def test_samples_of_the_whole_gpus_use_are_not_given(scene: Scene, kind: int, result: int) -> None:
    answer = scene.reader.call("nvmlDeviceGetSamples", scene.handle, kind, 0, "&41", "&42", "&43")
    assert answer.result == result
    assert (answer.cells == {}) == (result != SUCCESS)


def test_accounting_is_told_of_the_shares_own_only(scene: Scene) -> None:
    symbol = "nvmlDeviceGetAccountingStats_v2"
    for cell in range(COUNT, COUNT + 9):
        scene.reader.command(f"!set {cell} 0")
    scene.reader.command(f"!set {COUNT} {STRANGER}")
    answer = scene.reader.call(symbol, scene.handle, f"&{COUNT}")
    assert (answer.result, answer.cells) == (NVML_NOT_FOUND, {})
    scene.reader.command(f"!set {COUNT} {scene.pids[0]}")
    cells = scene.reader.ok(symbol, scene.handle, f"&{COUNT}").cells
    assert COUNT not in cells, "the reader's pid stays"
    assert cells[COUNT + 1] == 10


def test_window_on_the_memory_is_the_shares(scene: Scene) -> None:
    used = shares.usage(scene.share).used_bytes
    cells = scene.reader.ok("nvmlDeviceGetBAR1MemoryInfo", scene.handle, "&41").cells
    assert (cells[41], cells[42], cells[43]) == (LIMIT, LIMIT - used, used)


def test_size_among_the_attributes_is_the_shares(scene: Scene) -> None:
    cells = scene.reader.ok("nvmlDeviceGetAttributes_v2", scene.handle, "&41").cells
    assert (cells[41] & 0xFFFFFFFF, cells[45]) == (14, LIMIT // MIB)


def test_process_that_nobody_has_named_shows_no_figures(
    node: Sandbox, tmp_path: Path, clients: Clients, start: Start
) -> None:
    """Before the agent has written host pids, a pid of the container may be a neighbour's outside."""
    shares.make(node, gpu=node.gpu(), limit=LIMIT)
    path = _standin(clients, tmp_path / "nvml")
    probe = start(node, new_pids=True, env=_environment(node, path, list(range(1, 40))))
    probe.begin()
    probe.ok("nvmlInit_v2")
    handle = probe.ok("nvmlDeviceGetHandleByIndex_v2", 0, "&40").cells[40]
    probe.command(f"!set {COUNT} {ROOM}")
    answer = probe.call("nvmlDeviceGetProcessUtilization", handle, f"&{ENTRIES}", f"&{COUNT}", 0)
    assert answer.result == NVML_NOT_FOUND
    assert probe.ok("nvmlDeviceGetUtilizationRates", handle, "&41").cells[41] == 0


def test_without_a_limit_all_answers_are_the_drivers(
    node: Sandbox, tmp_path: Path, clients: Clients, start: Start
) -> None:
    shares.make(node, gpu=node.gpu(), limit=0, unlimited=True)
    path = _standin(clients, tmp_path / "nvml")
    env = _environment(node, path, [STRANGER, STRANGER + 1])
    probe, bare = start(node, env=env), start(node, env=env | {"LD_PRELOAD": ""}, bare=True)
    for symbol in (*LISTS, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetUtilizationRates"):
        answers = []
        for one in (probe, bare):
            one.ok("nvmlInit_v2")
            one.ok("nvmlDeviceGetHandleByIndex_v2", 0, "&40")
            handle = int(one.command("!cell 40"))
            _clear(one, ROOM * 6)
            one.command(f"!set {COUNT} {ROOM}")
            answers.append(one.call(symbol, handle, f"&{COUNT}", f"&{ENTRIES}"))
        assert answers[0] == answers[1], symbol
        assert answers[0].result == SUCCESS
