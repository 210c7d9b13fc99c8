# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of use, boards, links and drivers, and the tool that shows it."""

import json
import re
import struct
import subprocess
import sys

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, Node, Probe, wait_until
from shim.sim.tests.test_sim_compute import function, launch, load

NOT_FOUND = 6


def device(probe: Probe, index: int = 0) -> int:
    assert probe.code("nvmlInit_v2") == 0
    handle: int = probe.call("nvmlDeviceGetHandleByIndex_v2", index, {"out": 0}).outputs[0]
    return handle


def busy(node: Node, seconds: float, blocks: int = 100000) -> Probe:
    """A process with so much work in its queue."""
    probe = node.probe()
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    for _ in range(int(seconds * 20)):
        assert launch(probe, kernel, 0, blocks) == 0
    return probe


def utilization(reader: Probe, handle: int) -> int:
    answer = reader.call("nvmlDeviceGetUtilizationRates", handle, {"bytes": "00" * 8})
    assert answer.code == 0
    return int.from_bytes(bytes.fromhex(answer.outputs[0])[:4], "little")


def users(reader: Probe, handle: int, since: int = 0) -> tuple[int, list[tuple[int, int]], int]:
    """(code, [(pid, percent)], time stamp)."""
    answer = reader.call(
        "nvmlDeviceGetProcessUtilization", handle, {"bytes": "00" * 32 * 8}, {"bytes": "08000000"}, since
    )
    if answer.code:
        return answer.code, [], 0
    raw, count = bytes.fromhex(answer.outputs[0]), bytes.fromhex(answer.outputs[1])[0]
    rows = [struct.unpack_from("<I4xQIIII", raw, 32 * i) for i in range(count)]
    return 0, [(row[0], row[2]) for row in rows], max(row[1] for row in rows)


def test_a_busy_gpu_is_at_100_percent_and_an_idle_one_at_0(empty_node: Node) -> None:
    empty_node.init("l4:2")
    reader = empty_node.probe()
    first, second = device(reader, 0), device(reader, 1)
    assert (utilization(reader, first), users(reader, first)[0]) == (0, NOT_FOUND)
    worker = busy(empty_node, 20)
    wait_until(lambda: utilization(reader, first) == 100, "100 %")
    assert utilization(reader, second) == 0
    code, found, _ = users(reader, first)
    assert (code, found[0][0]) == (0, worker.popen.pid)
    worker.kill()
    wait_until(lambda: utilization(reader, first) == 0, "an idle GPU again")
    assert users(reader, first)[0] == NOT_FOUND


def test_the_use_of_two_processes_adds_up(node: Node) -> None:
    reader = node.probe()
    handle = device(reader)
    workers = [busy(node, 20), busy(node, 20)]
    pids = {worker.popen.pid for worker in workers}

    def halves() -> bool:
        _, found, _ = users(reader, handle, users(reader, handle)[2] - 200000)
        return {pid for pid, _ in found} == pids and all(45 <= percent <= 55 for _, percent in found)

    wait_until(halves, "two halves")


def test_samples_come_once(node: Node) -> None:
    reader = node.probe()
    handle = device(reader)
    worker = busy(node, 20)
    wait_until(lambda: users(reader, handle)[0] == 0, "a sample")
    _, _, stamp = users(reader, handle)
    assert users(reader, handle, stamp + 10**6)[0] == NOT_FOUND
    wait_until(lambda: users(reader, handle, stamp)[0] == 0, "the next sample")
    wait_until(lambda: utilization(reader, handle) == 100, "a whole period of work")
    size = reader.call("nvmlDeviceGetSamples", handle, 1, 0, {"out": 0}, {"bytes": "00" * 4}, 0)
    room = int.from_bytes(bytes.fromhex(size.outputs[1]), "little")
    count = room.to_bytes(4, "little").hex()
    got = reader.call(
        "nvmlDeviceGetSamples", handle, 1, 0, {"out": 0}, {"bytes": count}, {"bytes": "00" * 16 * room}
    )
    assert got.code == 0
    values = [value for _, value in struct.iter_unpack("<QQ", bytes.fromhex(got.outputs[2]))]
    assert 100 in values
    worker.kill()


def test_settings_make_nvml_as_bad_as_it_really_is(node: Node) -> None:
    reader = node.probe()
    handle = device(reader)
    workers = [busy(node, 20), busy(node, 20), busy(node, 20)]
    assert node.tool("set", "--nvml-step", "10").returncode == 0
    wait_until(lambda: {p for _, p in users(reader, handle)[1]} == {30}, "a third in steps of ten")
    assert node.tool("set", "--nvml-step", "1", "--nvml", "exact").returncode == 0
    assert utilization(reader, handle) >= 98
    assert node.tool("set", "--nvml", "real", "--nvml-lag-ms", "1000").returncode == 0
    for worker in workers:
        worker.kill()
    assert utilization(reader, handle) > 50, "that was a second ago, on a machine that may have been busy"


@pytest.mark.parametrize("slice_", ["500", "fifo"])
def test_turns_are_as_long_as_set(node: Node, slice_: str) -> None:
    assert node.tool("set", "--gpu", "0", "--time-slice-us", slice_).returncode == 0
    long, short = busy(node, 5), node.probe()
    short.start()
    kernel = function(short, load(short), "spin_1ms")
    reader = node.probe()
    handle = device(reader)
    for _ in range(1000):
        assert launch(short, kernel) == 0
    share = {"500": range(40, 61), "fifo": range(7)}[slice_]

    def seen() -> bool:
        found = dict(users(reader, handle)[1])
        return (
            len(found)
            == (2 if slice_ == "500" else 1) + (found.get(short.popen.pid, 0) > 0) * (slice_ == "fifo")
            and found.get(short.popen.pid, 0) in share
        )

    wait_until(seen, "the shares of both")
    long.kill()


def test_a_process_is_accounted(node: Node) -> None:
    worker = busy(node, 10)
    worker.allocate(100 * MIB)
    reader = node.probe()
    handle = device(reader)
    answer = reader.call("nvmlDeviceGetAccountingPids", handle, {"bytes": "04000000"}, {"bytes": "00" * 16})
    assert int.from_bytes(bytes.fromhex(answer.outputs[1])[:4], "little") == worker.popen.pid

    def stats() -> tuple[int, ...]:
        raw = reader.call("nvmlDeviceGetAccountingStats", handle, worker.popen.pid, {"bytes": "00" * 56})
        return struct.unpack_from("<IIQQQI", bytes.fromhex(raw.outputs[0]))

    wait_until(lambda: stats()[0] > 80, "most of its life")
    assert stats()[2] >= CONTEXT + 100 * MIB
    assert stats()[5] == 1
    assert reader.code("nvmlDeviceGetAccountingStats", handle, 1, {"bytes": "00" * 56}) == NOT_FOUND


ONE_NUMBER = [
    "PowerUsage",
    "EnforcedPowerLimit",
    "PowerManagementLimit",
    "MaxPcieLinkGeneration",
    "CurrPcieLinkWidth",
    "MemoryBusWidth",
]


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_the_board_has_figures(node: Node, name: str) -> None:
    probe = node.probe()
    answer = probe.call(f"nvmlDeviceGet{name}", device(probe), {"out": 0})
    assert answer.code == 0
    assert 0 < answer.outputs[0] & 0xFFFFFFFF < 1000000


def test_a_throttled_gpu_is_hot_and_slow(node: Node) -> None:
    probe = node.probe()
    handle = device(probe)
    worker = busy(node, 10)
    clock = ("nvmlDeviceGetClockInfo", handle, 1, {"out": 0})
    wait_until(lambda: probe.call(*clock).outputs[0] == 2040, "the highest clock")
    cool = probe.call("nvmlDeviceGetTemperature", handle, 0, {"out": 0}).outputs[0]
    assert node.tool("inject", "throttle", "--gpu", "0").returncode == 0
    assert probe.call(*clock).outputs[0] == 680
    assert probe.call("nvmlDeviceGetTemperature", handle, 0, {"out": 0}).outputs[0] > cool
    worker.kill()


@pytest.mark.parametrize(
    ("gpus", "active"), [("h100:2", 1), ("h100:1", 0), ("l4:2", None)], ids=["pair", "alone", "none"]
)
def test_nvlinks_join_gpus_of_a_kind(empty_node: Node, gpus: str, active: int | None) -> None:
    empty_node.init(gpus)
    probe = empty_node.probe()
    answer = probe.call("nvmlDeviceGetNvLinkState", device(probe), 0, {"out": 0})
    assert (answer.code, answer.outputs[0]) == ((0, active) if active is not None else (3, 0))


def test_a_fabric_has_one_uuid_on_all_its_nodes(empty_node: Node) -> None:
    made = empty_node.tool("init", "--gpu", "h100:2", "--node", "a", "--fabric", "rack:7")
    assert made.returncode == 0, made.stderr
    probe = empty_node.probe()
    answer = probe.call("nvmlDeviceGetGpuFabricInfo", device(probe), {"bytes": "00" * 28})
    uuid, clique, state = answer.outputs[0][:32], answer.outputs[0][40:48], answer.outputs[0][48:50]
    assert (clique, state) == ("07000000", "03")
    assert uuid != "00" * 16
    other = empty_node.root.parent / "other"
    made = empty_node.tool("init", "--gpu", "h100", "--node", "b", "--fabric", "rack", "--root", str(other))
    assert made.returncode == 0, made.stderr
    again = Node(root=other, build=empty_node.build).probe()
    assert (
        again.call("nvmlDeviceGetGpuFabricInfo", device(again), {"bytes": "00" * 28}).outputs[0][:32] == uuid
    )
    again.kill()


@pytest.mark.parametrize(
    ("branch", "version", "cuda"),
    [("535", "535.183.06", 12020), ("570", "570.148.08", 12080), ("595", "595.45.04", 13020)],
)
def test_a_driver_knows_what_its_time_knew(empty_node: Node, branch: str, version: str, cuda: int) -> None:
    made = empty_node.tool("init", "--gpu", "l4", "--node", "a", "--driver", branch)
    assert made.returncode == 0, made.stderr
    probe = empty_node.probe()
    assert probe.call("cuDriverGetVersion", {"out": 0}).outputs == [cuda]
    find = ("cuGetProcAddress_v2", "cuMemPrefetchBatchAsync", {"out": 7})
    answer = probe.call(*find, 13000, 0, {"bytes": "ffffffff"})
    assert (answer.code != 0) == (cuda < 13000), "later versions are invalid"
    answer = probe.call(*find, cuda, 0, {"bytes": "ffffffff"})
    assert (answer.code, answer.outputs[0] == 0) == (0, cuda < 13000)
    device(probe)
    assert probe.call("nvmlSystemGetDriverVersion", {"text": 80}, 80).outputs == [version]
    assert probe.call("nvmlSystemGetCudaDriverVersion_v2", {"out": 0}).outputs == [cuda]


def test_only_one_process_at_a_time_if_the_mode_says_so(node: Node) -> None:
    reader = node.probe()
    assert reader.code("nvmlDeviceSetComputeMode", device(reader), 3) == 0
    first, second = node.probe(), node.probe()
    first.start()
    first.retain()
    assert second.code("cuInit", 0) == 0
    assert second.code("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == 46
    first.kill()
    wait_until(lambda: second.code("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == 0, "the first one's end")
    assert reader.code("nvmlDeviceSetComputeMode", device(reader), 2) == 0
    assert node.probe().code("cuInit", 0) == 0
    assert reader.code("nvmlDeviceSetComputeMode", device(reader), 9) == 2


def smi(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(node.build / "aliquot-smi"), *arguments]
    return subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=False)


def test_the_tool_shows_gpus_and_processes(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(1000 * MIB)
    shown = smi(node)
    assert shown.returncode == 0, shown.stderr
    assert len({len(line) for line in shown.stdout.splitlines()}) == 1, "the frame is straight"
    assert re.search(rf"\| +0 +{probe.popen.pid} .*1300MiB", shown.stdout)
    assert re.search(r"Simulated NVIDIA L4 .*1756MiB / +23034MiB", shown.stdout, re.S)
    assert smi(node, "-L").stdout == f"GPU 0: Simulated NVIDIA L4 (UUID: {node.gpu()['uuid']})\n"


def test_the_tool_answers_queries_as_csv(node: Node) -> None:
    probe = node.probe()
    probe.start()
    asked = smi(node, "--query-gpu=index,name,memory.total,memory.used", "--format=csv")
    header, row = asked.stdout.splitlines()
    assert header == "index, name, memory.total [MiB], memory.used [MiB]"
    assert row == "0, Simulated NVIDIA L4, 23034 MiB, 300 MiB"
    bare = smi(node, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert bare.stdout == f"{probe.popen.pid}, 300\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query-gpu=nonsense", "--format=csv"], "no field nonsense"),
        (["--query-gpu=name"], "give --format=csv"),
        (["--what"], "usage:"),
    ],
)
def test_the_tool_refuses_what_it_does_not_know(node: Node, arguments: list[str], message: str) -> None:
    refused = smi(node, *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_the_tool_says_that_there_is_no_driver(empty_node: Node) -> None:
    refused = smi(empty_node)
    assert refused.returncode != 0
    assert "Driver Not Loaded" in refused.stderr


PYNVML = """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([
    n.nvmlDeviceGetUtilizationRates(h).gpu, n.nvmlDeviceGetPowerUsage(h),
    n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU), n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total, n.nvmlDeviceGetNumaNodeId(h),
    n.nvmlDeviceGetMinorNumber(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).total,
    n.nvmlDeviceGetFieldValues(h, [n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0].value.uiVal,
]))
"""


def test_the_python_binding_reads_it_all(node: Node) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PYNVML], env=node.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[-2:] == [23034 * MIB, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set"], "set needs --time-slice-us"),
        (["set", "--time-slice-us", "5"], "give fifo, or 10 to 1000000"),
        (["set", "--time-slice-us", "slow"], "give a number"),
        (["set", "--nvml", "good"], "give exact or real"),
        (["set", "--nvml-lag-ms", "9999"], "give a number from 0 to 1000"),
        (["set", "--gpu", "9", "--time-slice-us", "fifo"], "no such GPU"),
        (["init", "--gpu", "l4", "--driver", "510"], "there are 535"),
        (["init", "--gpu", "l4", "--fabric", ""], "give a name"),
    ],
)
def test_bad_settings_are_refused_in_words(node: Node, arguments: list[str], message: str) -> None:
    refused = node.tool(*arguments)
    assert refused.returncode != 0
    assert message in refused.stderr


def test_containers_get_the_tool_if_it_lies_beside_the_libraries(node: Node) -> None:
    shown = json.loads(node.tool("cdi", "--lib-dir", str(node.build)).stdout)
    mounts = {mount["containerPath"] for mount in shown["containerEdits"]["mounts"]}
    assert "/usr/bin/aliquot-smi" in mounts
    shown = json.loads(node.tool("cdi", "--lib-dir", "/nowhere").stdout)
    mounts = {mount["containerPath"] for mount in shown["containerEdits"]["mounts"]}
    assert "/usr/bin/aliquot-smi" not in mounts
