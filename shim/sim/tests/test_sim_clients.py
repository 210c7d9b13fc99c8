# SPDX-License-Identifier: Apache-2.0
"""NVML by its own rules, and unmodified clients: nvidia-ml-py and cuda-bindings."""

import json
import subprocess
import sys
from typing import Any

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, Node, Probe

VERSION_2 = 40 | 2 << 24

PROFILES = {
    "a100-40gb": (40960, (8, 0)),
    "a100-80gb": (81920, (8, 0)),
    "h100": (81559, (9, 0)),
    "h200": (143771, (9, 0)),
    "l4": (23034, (8, 9)),
    "t4": (15360, (7, 5)),
    "b200": (183359, (10, 0)),
}


def device(probe: Probe, index: int = 0) -> int:
    assert probe.code("nvmlInit_v2") == 0
    handle: int = probe.call("nvmlDeviceGetHandleByIndex_v2", index, {"out": 0}).outputs[0]
    return handle


def words(text: str) -> list[int]:
    raw = bytes.fromhex(text)
    return [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8)]


def test_memory_is_the_books(node: Node) -> None:
    probe = node.probe()
    probe.start()
    probe.allocate(100 * MIB)
    handle = device(probe)
    gpu = node.gpu()
    total, free, used = words(probe.call("nvmlDeviceGetMemoryInfo", handle, {"bytes": "00" * 24}).outputs[0])
    assert (total, used) == (gpu["total"], gpu["reserved"] + CONTEXT + 100 * MIB)
    assert total == free + used
    versioned = f"{VERSION_2.to_bytes(8, 'little').hex()}{'00' * 32}"
    second = words(probe.call("nvmlDeviceGetMemoryInfo_v2", handle, {"bytes": versioned}).outputs[0])
    second[0] &= 0xFFFFFFFF  # the rest is padding
    assert second == [VERSION_2, total, gpu["reserved"], free, CONTEXT + 100 * MIB]
    refused = probe.call("nvmlDeviceGetMemoryInfo_v2", handle, {"bytes": "00" * 40})
    assert (refused.code, refused.outputs) == (25, ["00" * 40])


@pytest.mark.parametrize(("version", "entry"), [("", 16), ("_v2", 24), ("_v3", 24)], ids=["v1", "v2", "v3"])
def test_process_list_tells_how_much_room_it_needs(node: Node, version: str, entry: int) -> None:
    name = f"nvmlDeviceGetComputeRunningProcesses{version}"
    reader = node.probe()
    handle = device(reader)
    assert reader.call(name, handle, {"out": 0}, 0).code == 0
    users = [node.probe() for _ in range(3)]
    for user in users:
        user.start()
    asked = reader.call(name, handle, {"out": 0}, 0)
    assert (asked.code, asked.outputs) == (7, [3])
    small = reader.call(name, handle, {"out": 2}, {"bytes": "ee" * entry * 2})
    assert (small.code, small.outputs) == (7, [3, "ee" * entry * 2])
    full = reader.call(name, handle, {"out": 4}, {"bytes": "ee" * entry * 4})
    assert (full.code, full.outputs[0]) == (0, 3)
    raw = bytes.fromhex(full.outputs[1])
    assert {int.from_bytes(raw[entry * i :][:4], "little") for i in range(3)} == {u.popen.pid for u in users}
    assert raw[entry * 3 :] == b"\xee" * entry, "no byte beyond the list is touched"
    assert reader.code(name, handle, {"out": 4}, 0) == 2
    assert reader.call(name.replace("Compute", "Graphics"), handle, {"out": 4}, 0).outputs == [0]


def test_init_is_counted(node: Node) -> None:
    probe = node.probe()
    count = ("nvmlDeviceGetCount_v2", {"out": 7})
    assert probe.call(*count).code == 1
    assert probe.code("nvmlShutdown") == 1
    assert [probe.code("nvmlInit_v2"), probe.code("nvmlInitWithFlags", 1)] == [0, 0]
    assert probe.code("nvmlShutdown") == 0
    assert probe.call(*count).outputs == [1]
    assert probe.code("nvmlShutdown") == 0
    assert (probe.call(*count).code, probe.call(*count).outputs) == (1, [7])


def test_handles_are_found_and_checked(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    handle = device(probe, 1)
    uuid = probe.call("nvmlDeviceGetUUID", handle, {"text": 80}, 80).outputs[0]
    assert probe.call("nvmlDeviceGetHandleByUUID", uuid, {"out": 0}).outputs == [handle]
    assert probe.call("nvmlDeviceGetHandleByPciBusId_v2", "00000000:1F:00.0", {"out": 0}).outputs == [handle]
    assert probe.code("nvmlDeviceGetHandleByPciBusId_v2", "0000:2f:00.0", {"out": 0}) == 6
    assert probe.code("nvmlDeviceGetHandleByIndex_v2", 2, {"out": 0}) == 2
    assert probe.code("nvmlDeviceGetUUID", handle, {"text": 10}, 10) == 7
    assert probe.code("nvmlDeviceGetMinorNumber", 0, {"out": 0}) == 2


def run(node: Node, script: str) -> Any:
    """What a Python program prints as JSON on the node."""
    ended = subprocess.run(
        [sys.executable, "-c", script], env=node.environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


NVML_SCRIPT = """
import json, pynvml as n
def mig(h):
    try:
        return n.nvmlDeviceGetMigMode(h)
    except n.NVMLError_NotSupported:
        return None
n.nvmlInit()
rows = [
    dict(
        name=n.nvmlDeviceGetName(h),
        uuid=n.nvmlDeviceGetUUID(h),
        minor=n.nvmlDeviceGetMinorNumber(h),
        total=n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).total >> 20,
        bus=n.nvmlDeviceGetPciInfo(h).busId,
        numa=n.nvmlDeviceGetNumaNodeId(h),
        capability=n.nvmlDeviceGetCudaComputeCapability(h),
        architecture=n.nvmlDeviceGetArchitecture(h),
        mig=mig(h),
        brand=n.nvmlDeviceGetBrand(h),
        index=n.nvmlDeviceGetIndex(h),
        busy=n.nvmlDeviceGetUtilizationRates(h).gpu,
        processes=[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
    )
    for h in map(n.nvmlDeviceGetHandleByIndex, range(n.nvmlDeviceGetCount()))
]
versions = dict(driver=n.nvmlSystemGetDriverVersion(), cuda=n.nvmlSystemGetCudaDriverVersion())
print(json.dumps(dict(rows=rows, **versions)))
n.nvmlShutdown()
"""


def test_nvidia_ml_py_reads_every_profile(empty_node: Node) -> None:
    empty_node.init(*PROFILES)
    user = empty_node.probe()
    user.start(4)
    answer = run(empty_node, NVML_SCRIPT)
    assert (answer["driver"].split(".")[0], answer["cuda"]) == ("580", 13000)
    for index, (row, (total, capability)) in enumerate(zip(answer["rows"], PROFILES.values(), strict=True)):
        assert row["name"].startswith("Simulated ")
        assert (row["total"], tuple(row["capability"])) == (total, capability)
        assert (row["index"], row["minor"], row["busy"], row["brand"]) == (index, index, 0, 14)
        assert row["bus"] == f"00000000:{16 * index + 15:02X}:00.0"
        assert row["numa"] in (0, 1)
        assert row["mig"] == ([0, 0] if capability in ((8, 0), (9, 0)) else None)
        assert row["processes"] == ([[user.popen.pid, CONTEXT]] if index == 4 else [])


CUDA_SCRIPT = """
import json
from cuda.bindings import driver as d
def check(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
check(d.cuInit(0)); device = check(d.cuDeviceGet(0))
context = check(d.cuDevicePrimaryCtxRetain(device)); check(d.cuCtxSetCurrent(context))
before, total = check(d.cuMemGetInfo())
pointer = check(d.cuMemAlloc(64 << 20))
taken = before - check(d.cuMemGetInfo())[0]
stream = check(d.cuStreamCreate(0)); check(d.cuStreamSynchronize(stream)); check(d.cuStreamDestroy(stream))
data = bytearray(b"aliquot"); back = bytearray(7)
check(d.cuMemcpyHtoD(pointer, data, 7)); check(d.cuMemcpyDtoH(back, pointer, 7))
refused = int(d.cuMemAlloc(total)[0])
name = check(d.cuDeviceGetName(96, device)).split(b"\\0")[0].decode()
check(d.cuMemFree(pointer))
left = before - check(d.cuMemGetInfo())[0]
print(json.dumps(dict(taken=taken, left=left, back=back.decode(), refused=refused, name=name)))
"""


def test_cuda_bindings_allocate_copy_and_free(node: Node) -> None:
    pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    assert run(node, CUDA_SCRIPT) == {
        "taken": 64 * MIB,
        "left": 0,
        "back": "aliquot",
        "refused": 2,
        "name": "Simulated NVIDIA L4",
    }


def test_cdi_specification_brings_one_gpu_into_a_container(empty_node: Node) -> None:
    empty_node.init("l4:2")
    shown = empty_node.tool("cdi", "--lib-dir", "/opt/sim")
    specification = json.loads(shown.stdout)
    assert (specification["cdiVersion"], specification["kind"]) == ("0.5.0", "sim.aliquot.dev/gpu")
    common = {m["containerPath"]: m for m in specification["containerEdits"]["mounts"]}
    assert common["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]["hostPath"] == "/opt/sim/libcuda.so.1"
    assert "ro" in common["/usr/lib64/libnvidia-ml.so.1"]["options"]
    assert common["/run/aliquot-sim/state"]["hostPath"] == f"{empty_node.root}/state"
    assert "rw" in common["/run/aliquot-sim/state"]["options"]
    uuids = [gpu["uuid"] for gpu in empty_node.books()["gpus"]]
    assert [found["name"] for found in specification["devices"]] == uuids
    (mount,) = specification["devices"][1]["containerEdits"]["mounts"]
    assert mount["hostPath"] == f"{empty_node.root}/dev/{uuids[1]}"
    assert mount["containerPath"] == f"/run/aliquot-sim/dev/{uuids[1]}"
