# SPDX-License-Identifier: Apache-2.0
"""Programs on MIG devices: what they see, the memory and GPU time that they get, who is in the way."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shim.sim.tests.migs import instances, mig, nvml, partition, uuids
from shim.sim.tests.simnode import CONTEXT, MIB, Node, Probe, wait_until
from shim.sim.tests.structs import DESCRIPTOR, memory_prop, pool_props
from shim.sim.tests.test_sim_compute import function, launch, load, made, milliseconds

NO_DEVICE, OUT_OF_MEMORY, UNAVAILABLE, NOT_SUPPORTED, MAP_FAILED = 100, 2, 46, 801, 205
MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""


@pytest.fixture
def parts(empty_node: Node) -> Node:
    """An A100 in a half with two devices and three small ones; and an L4."""
    empty_node.init("a100-40gb", "l4")
    partition(empty_node, "3g.20gb", compute="2,1")
    partition(empty_node, "1g.5gb", "1g.5gb", "1g.5gb")
    return empty_node


def seen(node: Node, visible: str | None) -> list[str]:
    """Names of a program's devices."""
    probe = node.probe(visible=visible)
    if probe.code("cuInit", 0) == NO_DEVICE:
        return []
    count = probe.call("cuDeviceGetCount", {"out": 0}).outputs[0] & 0xFFFFFFFF
    names = [probe.call("cuDeviceGetName", {"text": 96}, 96, i).outputs[0] for i in range(count)]
    return [name.removeprefix("Simulated NVIDIA ") for name in names]


HALF = ["A100-SXM4-40GB MIG 2c.3g.20gb"]
OTHER_HALF = ["A100-SXM4-40GB MIG 1c.3g.20gb"]
SMALL = ["A100-SXM4-40GB MIG 1g.5gb"]


def test_one_mig_device_is_all_that_a_program_sees(parts: Node) -> None:
    one, two, small, *_ = uuids(parts)
    gpu = parts.gpu()["uuid"]
    assert seen(parts, None) == HALF, "the first, and no whole GPU beside it"
    assert seen(parts, one) == HALF
    assert seen(parts, f"{two},{small}") == OTHER_HALF
    assert seen(parts, small.upper()) == SMALL
    assert seen(parts, f"MIG-{gpu}/2/2") == OTHER_HALF, "as drivers before 470 wrote it"
    assert seen(parts, "0") == seen(parts, gpu) == HALF
    assert seen(parts, "1") == ["L4"]
    assert seen(parts, f"1,{small}") == SMALL
    assert seen(parts, small[:12]) == seen(parts, "MIG-00000000-0000-0000-0000-000000000000") == []


def test_a_gpu_in_mig_mode_without_devices_is_not_seen(parts: Node) -> None:
    mig(parts, "destroy", "--gpu", "0")
    assert seen(parts, None) == ["L4"]
    assert seen(parts, "0") == []
    mig(parts, "off", "--gpu", "0")
    assert seen(parts, None) == ["A100-SXM4-40GB", "L4"]


def test_a_folder_with_a_marker_of_a_mig_device_shows_that_one(parts: Node) -> None:
    marker = parts.root / "dev" / uuids(parts)[2]
    marker.touch()
    assert seen(parts, None) == SMALL
    assert seen(parts, uuids(parts)[0]) == []
    shown = nvml(parts, "out = [n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0))]")
    assert shown == [marker.name]
    assert nvml(parts, "out = code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 1)") == 6


def test_containers_get_a_mig_device_by_two_markers(parts: Node) -> None:
    specification = json.loads(parts.tool("cdi", "--lib-dir", "/opt/sim").stdout)
    gpu, *devices, other = specification["devices"]
    assert [device["name"] for device in devices] == uuids(parts)
    (own,) = gpu["containerEdits"]["mounts"]
    parent, part = devices[0]["containerEdits"]["mounts"]
    assert parent == own
    assert (part["hostPath"], Path(part["containerPath"]).name) == (own["hostPath"], uuids(parts)[0])
    assert len(other["containerEdits"]["mounts"]) == 1


def test_a_device_is_as_large_as_its_part(parts: Node) -> None:
    one, two, *_ = uuids(parts)
    probe = parts.probe(visible=two)
    probe.start()
    assert probe.info() == (20096 * MIB - CONTEXT, 20096 * MIB)
    assert probe.call("cuDeviceTotalMem_v2", {"out": 0}, 0).outputs == [20096 * MIB]
    assert probe.call("cuDeviceGetAttribute", {"out": 0}, MULTIPROCESSORS, 0).outputs == [14]
    own, parent = (
        probe.call(f"cuDeviceGetUuid{version}", {"bytes": "00" * 16}, 0).outputs[0] for version in ("_v2", "")
    )
    assert own == two.removeprefix("MIG-").replace("-", "")
    assert parent == parts.gpu()["uuid"].removeprefix("GPU-").replace("-", "")
    probe.allocate(15000 * MIB)
    neighbour = parts.probe(visible=one)
    neighbour.start()
    assert neighbour.info()[0] == (20096 - 15000) * MIB - 2 * CONTEXT, "they share the instance's memory"
    assert neighbour.code("cuMemAlloc_v2", {"out": 0}, 6000 * MIB) == OUT_OF_MEMORY


def test_a_full_instance_takes_nothing_from_its_neighbours(parts: Node) -> None:
    *_, first, second = uuids(parts)
    full, free = parts.probe(visible=first), parts.probe(visible=second)
    full.start()
    free.start()
    full.allocate(4864 * MIB - CONTEXT)
    assert full.code("cuMemAlloc_v2", {"out": 0}, 2 * MIB) == OUT_OF_MEMORY
    assert free.info() == (4864 * MIB - CONTEXT, 4864 * MIB)
    free.allocate(1000 * MIB)
    found = {found["devices"][0]["uuid"]: found for found in parts.gpu()["instances"]}
    assert (found[first]["used"], found[first]["peak"]) == (4864 * MIB, 4864 * MIB)
    assert found[second]["used"] == CONTEXT + 1000 * MIB
    assert parts.gpu()["used"] == 4864 * MIB + CONTEXT + 1000 * MIB
    full.kill()
    wait_until(lambda: parts.gpu()["used"] == CONTEXT + 1000 * MIB, "the dead one's memory")
    assert parts.tool("reset").returncode == 0
    found = {found["devices"][0]["uuid"]: found for found in parts.gpu()["instances"]}
    assert (found[first]["peak"], found[second]["peak"]) == (0, CONTEXT + 1000 * MIB)


def test_nvml_tells_whose_memory_is_in_which_instance(parts: Node) -> None:
    _, two, *_, last = uuids(parts)
    one, other = parts.probe(visible=two), parts.probe(visible=last)
    one.start()
    other.start()
    other.allocate(100 * MIB)
    script = """
def told(d):
    return [[p.pid, p.usedGpuMemory >> 20, p.gpuInstanceId, p.computeInstanceId]
            for p in n.nvmlDeviceGetComputeRunningProcesses(d)]
parts = [n.nvmlDeviceGetMigDeviceHandleByIndex(h, i) for i in range(5)]
out = [told(h), [told(d) for d in parts], [n.nvmlDeviceGetMemoryInfo(d).used >> 20 for d in (h, *parts)]]
"""
    everybody, each, used = nvml(parts, script)
    first, second = [one.popen.pid, 300, 2, 2], [other.popen.pid, 400, instances(parts)[-1]["id"], 0]
    assert sorted(everybody) == sorted([first, second])
    assert each == [[], [first], [], [], [second]]
    assert used == [622 + 700, 300, 300, 0, 0, 400]


def test_what_is_used_is_not_destroyed(parts: Node) -> None:
    one, two, *_ = uuids(parts)
    user = parts.probe(visible=two)
    assert user.code("cuInit", 0) == 0
    refused = parts.tool("mig", "destroy", "--gpu", "0", "--instance", "2")
    assert (refused.returncode, "in use" in refused.stderr) == (1, True)
    assert two in uuids(parts)
    assert parts.tool("inject", "recover", "--gpu", "0").returncode == 1
    user.kill()
    wait_until(
        lambda: parts.tool("mig", "destroy", "--gpu", "0", "--instance", "2").returncode == 0, "its end"
    )
    assert not {one, two} & set(uuids(parts))


def test_exported_memory_keeps_its_instance_until_it_is_gone(parts: Node) -> None:
    maker = parts.probe(visible=uuids(parts)[-1])
    maker.start()
    handle = maker.call("cuMemCreate", {"out": 0}, 100 * MIB, memory_prop(handles=DESCRIPTOR), 0).outputs[0]
    descriptor = maker.call("cuMemExportToShareableHandle", {"out": 0}, handle, DESCRIPTOR, 0).outputs[0]
    keeper = parts.probe()
    mailbox = str(parts.root / "mailbox")
    keeper.code("open_mailbox", mailbox)
    maker.code("post_descriptor", mailbox, descriptor)
    keeper.call("collect_descriptor")
    maker.kill()
    last = instances(parts)[-1]
    wait_until(lambda: instances(parts)[-1]["used"] == 100 * MIB, "the maker's own memory is gone")
    destroy = ("mig", "destroy", "--gpu", "0", "--instance", str(last["id"]))
    assert parts.tool(*destroy).returncode == 1
    keeper.kill()
    wait_until(lambda: parts.tool(*destroy).returncode == 0, "the memory's end")


@pytest.mark.parametrize("kind", ["ipc", "memory", "pool"])
def test_memory_is_not_shared_between_gpu_instances(parts: Node, kind: str) -> None:
    one, two, small, *_ = uuids(parts)
    maker, near, far = (parts.probe(visible=uuid) for uuid in (one, two, small))
    for number, probe in enumerate((near, far, maker)):
        probe.start()
        probe.code("open_mailbox", str(parts.root / f"mailbox{number}"))
    if kind == "ipc":
        handle = maker.call("cuIpcGetMemHandle", {"bytes": "00" * 64}, maker.allocate(4 * MIB)).outputs[0]
        answers = [p.code("cuIpcOpenMemHandle_v2", {"out": 0}, {"value": handle}, 1) for p in (near, far)]
        assert answers == [0, MAP_FAILED]
        return
    create, name, rest = {
        "memory": (
            ("cuMemCreate", {"out": 0}, 4 * MIB, memory_prop(handles=DESCRIPTOR), 0),
            ("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"),
            (DESCRIPTOR,),
        ),
        "pool": (
            ("cuMemPoolCreate", {"out": 0}, pool_props(handles=DESCRIPTOR)),
            ("cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle"),
            (DESCRIPTOR, 0),
        ),
    }[kind]
    handle = maker.call(*create).outputs[0]
    answers = []
    for number, probe in enumerate((near, far)):
        descriptor = maker.call(name[0], {"out": 0}, handle, DESCRIPTOR, 0).outputs[0]
        maker.code("post_descriptor", str(parts.root / f"mailbox{number}"), descriptor)
        received = probe.call("collect_descriptor").outputs[0]
        answers.append(probe.code(name[1], {"out": 0}, received, *rest))
    assert answers == [0, NOT_SUPPORTED]


def test_who_came_before_mig_mode_gets_no_context_after_it(empty_node: Node) -> None:
    empty_node.init("h100")
    early = empty_node.probe()
    assert early.code("cuInit", 0) == 0
    partition(empty_node, "7g.80gb")
    assert early.code("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == UNAVAILABLE
    assert early.code("cuMemCreate", {"out": 0}, 2 * MIB, memory_prop(), 0) == OUT_OF_MEMORY
    assert empty_node.gpu()["used"] == 0
    late = empty_node.probe()
    late.start()
    assert late.call("cuDeviceGetAttribute", {"out": 0}, MULTIPROCESSORS, 0).outputs == [132]


def worker(node: Node, uuid: str, kernels: int) -> tuple[Probe, int, int]:
    """A program with so many kernels of 50 ms in its queue, between two events: all begin at once."""
    probe = node.probe(visible=uuid)
    probe.start()
    kernel = function(probe, load(probe), "spin_50ms")
    stream, start, end = (
        made(probe, "cuStreamCreate"),
        made(probe, "cuEventCreate"),
        made(probe, "cuEventCreate"),
    )
    assert probe.code("launch_host", stream, 0) == 0
    assert probe.code("cuEventRecord", start, stream) == 0
    assert [launch(probe, kernel, stream) for _ in range(kernels)] == [0] * kernels
    assert probe.code("cuEventRecord", end, stream) == 0
    probe.call("open_gate")
    return probe, start, end


def test_mig_devices_do_not_wait_for_one_another(parts: Node) -> None:
    one, two, small, *_ = uuids(parts)
    busy = [worker(parts, one, 400)[0], worker(parts, small, 400)[0]]
    probe, start, end = worker(parts, two, 6)
    assert probe.code("cuEventSynchronize", end) == 0
    assert 299.9 <= milliseconds(probe, start, end) < 550, "three on one GPU would need 900 ms"
    for other in busy:
        other.kill()


def test_programs_on_one_mig_device_take_turns(parts: Node) -> None:
    small = uuids(parts)[2]
    busy, *_ = worker(parts, small, 400)
    probe, start, end = worker(parts, small, 6)
    assert probe.code("cuEventSynchronize", end) == 0
    assert milliseconds(probe, start, end) >= 550
    busy.kill()
    probe, start, end = worker(parts, small, 6)
    assert probe.code("cuEventSynchronize", end) == 0, "the dead one's work does not stay in the queue"


def test_what_a_dead_program_left_on_a_device_is_not_taken_for_anothers(parts: Node) -> None:
    one, _, small, *_ = uuids(parts)
    dead, *_ = worker(parts, one, 400)
    waiting = parts.probe(visible=one)
    waiting.start()
    kernel = function(waiting, load(waiting), "spin_1ms")
    dead.kill()
    parts.books()  # which clears his place for the next one
    probe, start, end = worker(parts, small, 20)
    wait_until(lambda: probe.code("cuEventQuery", start) == 0, "his successor's work")
    assert launch(waiting, kernel) == waiting.code("cuCtxSynchronize") == 0
    assert probe.code("cuEventSynchronize", end) == 0
    assert milliseconds(probe, start, end) >= 999.99, "it got no turn on the other device"


def test_memory_can_be_held_on_a_mig_device(parts: Node) -> None:
    small = uuids(parts)[2]
    command = [str(parts.build / "aliquot-sim"), "inject", "hold", "--gpu", small, "--memory", "1Gi"]
    holder = subprocess.Popen(command, env=parts.environment(), stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert "holds 1024 MiB" in holder.stdout.readline()
    used = [found["used"] >> 20 for found in instances(parts)]
    assert sum(used) == 1024
    assert used[0] == 0
    holder.kill()
    holder.wait()


CHURN = """
import random, sys, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
dice = random.Random(int(sys.argv[1]))
print("begun", flush=True)
while True:
    try:
        n.nvmlGpuInstanceCreateComputeInstance(
            n.nvmlDeviceCreateGpuInstance(h, dice.choice((19, 15, 14, 9, 5, 20))), 0)
    except n.NVMLError:
        pass
    try:
        g = n.nvmlDeviceGetGpuInstanceById(h, dice.randrange(14))
        n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(g, 0))
        n.nvmlGpuInstanceDestroy(g)
    except n.NVMLError:
        pass
"""


def overlap_free(found: list[dict[str, int]]) -> bool:
    taken = [place for one in found for place in range(one["start"], one["start"] + one["size"])]
    return len(taken) == len(set(taken)) and all(place < 8 for place in taken)


def test_killing_those_who_change_instances_breaks_nothing(empty_node: Node) -> None:
    empty_node.init("a100-40gb")
    mig(empty_node, "on", "--gpu", "0")
    dice = random.Random(7)
    for round_ in range(int(os.environ.get("ALIQUOT_MIG_ROUNDS", "2"))):
        churners = [
            subprocess.Popen(
                [sys.executable, "-c", CHURN, str(10 * round_ + number)],
                env=empty_node.environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        for churner in churners:
            assert churner.stdout
            assert churner.stdout.readline() == "begun\n"
        users = [empty_node.probe() for _ in range(2)]
        codes = [user.code("cuInit", 0) for user in users]
        assert set(codes) <= {0, NO_DEVICE}
        for _ in range(dice.randrange(3)):
            assert overlap_free(instances(empty_node))
        for churner in churners:
            churner.send_signal(signal.SIGKILL)
            churner.wait()
        assert overlap_free(instances(empty_node))
        for user, code in zip(users, codes, strict=True):
            name = user.call("cuDeviceGetName", {"text": 96}, 96, 0).outputs[0] if code == 0 else ""
            assert code != 0 or "MIG" in name, "whoever got in is still on his device"
            assert code != 0 or user.code("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == 0
            user.kill()
    wait_until(lambda: empty_node.tool("mig", "destroy", "--gpu", "0").returncode == 0, "the users' end")
    partition(empty_node, "7g.40gb")
    assert [found["used"] for found in instances(empty_node)] == [0]
