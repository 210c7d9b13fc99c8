# SPDX-License-Identifier: Apache-2.0
"""NVML through the simulated driver's library, as the agent meets it on a simulated node."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SIM = ROOT / "build" / "sim"

LIST = """
import json, dataclasses
from aliquot_agent.nvml import Nvml
nvml = Nvml()
inventory = nvml.inventory()
assert not inventory.problems
print(json.dumps([dataclasses.asdict(gpu) for gpu in inventory.gpus]))
"""
PROCESSES = """
import ctypes, json, os
from aliquot_agent.nvml import Nvml
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0
nvml = Nvml()
used = {
    gpu.uuid: [(process.host_pid == os.getpid(), process.used_bytes) for process in nvml.processes(gpu.uuid)]
    for gpu in nvml.inventory().gpus
}
print(json.dumps(list(used.values())))
"""


def run(root: Path, code: str, *, library: Path = SIM, arguments: tuple[str, ...] = ()) -> Any:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "ALIQUOT_SIM_ROOT": str(root)}
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def sim(tmp_path: Path) -> Path:
    """A machine with two simulated L4."""
    command = [str(SIM / "aliquot-sim"), "init", "--gpu", "l4:2", "--node", "n1", "--root", str(tmp_path)]
    subprocess.run(command, check=True, timeout=30, capture_output=True)
    return tmp_path


def test_each_gpu_is_described(sim: Path) -> None:
    one, two = run(sim, LIST)
    assert one["uuid"] != two["uuid"]
    assert one["uuid"].startswith("GPU-")
    assert "L4" in one["product_name"]
    assert one["compute_capability"] == [8, 9]
    assert one["architecture"] == "Ada Lovelace"
    assert one["driver_version"].count(".") == 2


def test_memory_that_the_driver_keeps_is_not_shared_out(sim: Path) -> None:
    books = subprocess.run(
        [SIM / "aliquot-sim", "books", "--json", "--root", sim], check=True, timeout=30, capture_output=True
    )
    gpu = json.loads(books.stdout)["gpus"][0]
    one, _ = run(sim, LIST)
    assert one["memory_bytes"] == gpu["total"] - gpu["reserved"]
    assert gpu["reserved"] > 0


def test_processes_are_listed_by_host_pid(sim: Path) -> None:
    one, two = run(sim, PROCESSES)
    assert [mine for mine, _ in one] == [True]
    assert one[0][1] > 64 << 20
    assert two == []


def test_of_a_gpu_that_nobody_uses_there_is_nothing_to_tell(sim: Path) -> None:
    code = """
import json
from aliquot_agent.nvml import Nvml
nvml = Nvml()
print(json.dumps([nvml.use(gpu.uuid, since_us=0) for gpu in nvml.inventory().gpus]))
"""
    assert run(sim, code) == [[], []]


def test_without_a_driver_the_error_is_ours(tmp_path: Path) -> None:
    code = """
import json
from aliquot_agent.errors import NvmlError
from aliquot_agent.nvml import Nvml
try:
    Nvml()
except NvmlError as error:
    print(json.dumps(str(error)))
"""
    assert "NVML does not start" in run(tmp_path, code, library=tmp_path)


GONE = """
import json
import pynvml
from aliquot_agent.errors import NvmlError
from aliquot_agent.nvml import Nvml
nvml = Nvml()
real = pynvml.nvmlDeviceGetHandleByIndex
answers = []
for healthy, error in ((0, pynvml.NVML_ERROR_UNKNOWN), (1, pynvml.NVML_ERROR_UNKNOWN),
                       (0, pynvml.NVML_ERROR_GPU_IS_LOST)):
    def handle(index):
        if index >= healthy:
            raise pynvml.NVMLError(error)
        return real(index)
    pynvml.nvmlDeviceGetHandleByIndex = handle
    try:
        inventory = nvml.inventory()
        answers.append([len(inventory.gpus), [problem.lost for problem in inventory.problems]])
    except NvmlError as error:
        answers.append(str(error))
print(json.dumps(answers))
"""


def test_only_a_driver_that_answers_for_no_gpu_is_the_librarys_failure(sim: Path) -> None:
    failed, left, lost = run(sim, GONE)
    assert "answers for no GPU" in failed
    assert left == [1, [False]]
    assert lost == [0, [True, True]]


PARTITIONED = """
import json, subprocess, sys
from aliquot_agent.hardware import Hardware
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_agent.nvml import Nvml
from aliquot_agent.readiness import Readiness
hardware = Hardware(open_nvml=Nvml, readiness=Readiness(), policy=NodePolicy)
def mig(*words):
    command = [sys.argv[1], "mig", *words, "--gpu", "0"]
    subprocess.run(command, check=True, timeout=30, capture_output=True)
def look():
    changed = hardware.refresh()
    minors = [device["attributes"]["minor"]["int"] for device in hardware.published()]
    return [changed, minors, [[each.index, each.cause, each.message] for each in hardware.left_out()]]
seen = [look()]
mig("on")
seen.append(look())
mig("create", "--profile", "3g.20gb")
seen.append(look())
mig("destroy")
mig("off")
seen.append(look())
print(json.dumps(seen))
"""


def test_a_gpu_is_left_out_while_it_is_in_mig_mode(tmp_path: Path) -> None:
    init = ["init", "--gpu", "a100-40gb", "--gpu", "l4", "--node", "n1", "--root", str(tmp_path)]
    subprocess.run([SIM / "aliquot-sim", *init], check=True, timeout=30, capture_output=True)
    reason = [0, "mig", "MIG mode is on; partitions are not supported yet"]
    assert run(tmp_path, PARTITIONED, arguments=(str(SIM / "aliquot-sim"),)) == [
        [True, [0, 1], []],
        [True, [1], [reason]],
        [False, [1], [reason]],
        [True, [0, 1], []],
    ]


VITALS = """
import json, subprocess, sys
from aliquot_agent.nvml import Nvml
nvml = Nvml()
one, two = nvml.inventory().gpus
events = nvml.xid_events(frozenset({one.uuid, two.uuid}))
def inject(*words):
    subprocess.run([sys.argv[1], "inject", *words, "--gpu", two.uuid], check=True, timeout=30)
def look():
    vitals = nvml.vitals(two.uuid)
    return [vitals.lost, vitals.uncorrected, vitals.action_needed]
seen = [look()]
inject("xid", "--code", "13")
first = events.wait(5000)
inject("ecc", "--count", "2")
codes = [first.code]
while (xid := events.wait(1000)) is not None:
    assert xid.gpu_uuid == two.uuid
    codes.append(xid.code)
seen.append(look())
inject("lost")
seen.append(look())
codes.append(events.wait(5000).code)
inject("recover")
seen.append(look())
assert nvml.vitals(one.uuid).uncorrected == 0 and not nvml.vitals(one.uuid).lost
print(json.dumps([seen, codes]))
"""


def test_faults_are_seen_in_the_vitals_and_as_events(sim: Path) -> None:
    seen, codes = run(sim, VITALS, arguments=(str(SIM / "aliquot-sim"),))
    assert seen == [[False, 0, False], [False, 2, True], [True, None, None], [False, 0, False]]
    assert codes == [13, 48, 79]
