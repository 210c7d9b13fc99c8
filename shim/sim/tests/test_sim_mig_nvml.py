# SPDX-License-Identifier: Apache-2.0
"""MIG through unmodified nvidia-ml-py: mode, profiles, instances, devices."""

import re

import pytest

from shim.sim.tests.migs import instances, mig, nvml, partition, uuids
from shim.sim.tests.simnode import REPOSITORY, Node
from shim.sim.tests.test_sim_nvml import smi

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INVALID, IN_USE, NO_RESOURCES = 3, 4, 6, 2, 19, 23

MODES = "out = [n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h)]"


@pytest.fixture
def a100(empty_node: Node) -> Node:
    empty_node.init("a100-40gb")
    return empty_node


@pytest.fixture
def mig_a100(a100: Node) -> Node:
    """MIG mode is on."""
    mig(a100, "on", "--gpu", "0")
    return a100


def test_the_mode_is_on_at_once_where_nobody_uses_the_gpu(a100: Node) -> None:
    assert nvml(a100, MODES) == [[0, 0], 0]
    assert nvml(a100, "out = [n.nvmlDeviceSetMigMode(h, 1)]") == [0]
    assert nvml(a100, MODES) == [[1, 1], 7]
    assert nvml(a100, "out = [n.nvmlDeviceSetMigMode(h, 0)]") == [0]
    assert nvml(a100, MODES) == [[0, 0], 0]


def test_of_a_gpu_in_use_the_mode_is_pending_until_a_reset(a100: Node) -> None:
    user = a100.probe()
    user.start()
    assert nvml(a100, "out = [n.nvmlDeviceSetMigMode(h, 1)]") == [IN_USE]
    assert nvml(a100, MODES) == [[0, 1], 0]
    assert a100.tool("inject", "recover", "--gpu", "0").returncode == 1, "a reset wants the GPU idle, too"
    user.kill()
    assert a100.tool("inject", "recover", "--gpu", "0").returncode == 0
    assert nvml(a100, MODES) == [[1, 1], 7]


def test_a_reset_destroys_all_instances(mig_a100: Node) -> None:
    partition(mig_a100, "3g.20gb", "1g.5gb")
    assert len(uuids(mig_a100)) == 2
    assert mig_a100.tool("inject", "recover", "--gpu", "0").returncode == 0
    assert instances(mig_a100) == []
    assert nvml(mig_a100, MODES) == [[1, 1], 7], "the mode stays"


def test_the_mode_stays_on_while_there_are_instances(mig_a100: Node) -> None:
    partition(mig_a100, "1g.5gb")
    assert nvml(mig_a100, "out = [n.nvmlDeviceSetMigMode(h, 0)]") == [IN_USE]
    assert nvml(mig_a100, MODES) == [[1, 0], 7]
    mig(mig_a100, "destroy", "--gpu", "0")
    mig(mig_a100, "off", "--gpu", "0")
    assert nvml(mig_a100, MODES) == [[0, 0], 0]


REFUSED = """
placement = n.byref(n.c_nvmlGpuInstancePlacement_t(0, 1))
out = [
    code(n.nvmlDeviceGetMigMode, h), code(n.nvmlDeviceSetMigMode, h, 1),
    code(n.nvmlDeviceGetGpuInstanceProfileInfo, h, 0), code(n.nvmlDeviceGetGpuInstanceProfileInfoV, h, 0),
    code(n.nvmlDeviceGetGpuInstanceRemainingCapacity, h, 19), code(n.nvmlDeviceCreateGpuInstance, h, 19),
    code(n.nvmlDeviceCreateGpuInstanceWithPlacement, h, 19, placement),
    code(n.nvmlDeviceGetGpuInstanceById, h, 7), code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
    code(n.nvmlDeviceGetAttributes, h),
]
"""


@pytest.mark.parametrize("card", ["l4", "t4", "b200"])
def test_a_card_that_cannot_be_partitioned_supports_none_of_it(empty_node: Node, card: str) -> None:
    empty_node.init(card)
    assert set(nvml(empty_node, REFUSED)) == {NOT_SUPPORTED}
    refused = empty_node.tool("mig", "on", "--gpu", "0")
    assert refused.returncode == 1
    assert "cannot be partitioned" in refused.stderr


PROFILES = """
out = {}
for profile in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
    if code(n.nvmlDeviceGetGpuInstanceProfileInfo, h, profile):
        continue
    old = n.nvmlDeviceGetGpuInstanceProfileInfo(h, profile)
    new = n.nvmlDeviceGetGpuInstanceProfileInfoV(h, profile)
    assert (old.id, old.memorySizeMB, old.sliceCount) == (new.id, new.memorySizeMB, new.sliceCount)
    name = new.name.decode() if isinstance(new.name, bytes) else new.name
    out[name] = [new.id, new.instanceCount, new.memorySizeMB / 1024, new.multiprocessorCount,
                 new.copyEngineCount, new.decoderCount, new.jpegCount, new.ofaCount]
"""


@pytest.mark.parametrize(
    ("card", "name", "row"),
    [
        ("a100-40gb", "MIG 1g.5gb", [19, 7, 4.75, 14, 1, 0, 0, 0]),
        ("a100-40gb", "MIG 7g.40gb", [0, 1, 39.375, 98, 7, 5, 1, 1]),
        ("a100-80gb", "MIG 1g.10gb+me", [20, 1, 9.5, 14, 1, 1, 1, 1]),
        ("a100-80gb", "MIG 3g.40gb", [9, 2, 39.25, 42, 3, 2, 0, 0]),
        ("h100", "MIG 1g.20gb", [15, 4, 19.625, 26, 1, 1, 1, 0]),
        ("h100", "MIG 4g.40gb", [5, 1, 39.5, 64, 4, 4, 4, 0]),
        ("h200", "MIG 2g.35gb", [14, 3, 32.5, 32, 2, 2, 2, 0]),
        ("h200", "MIG 7g.141gb", [0, 1, 140, 132, 8, 7, 7, 1]),
    ],
)
def test_profiles_are_as_published(empty_node: Node, card: str, name: str, row: list[float]) -> None:
    empty_node.init(card)
    shown = nvml(empty_node, PROFILES)
    assert len(shown) == 7
    assert shown[name] == row


PLACEMENTS = """
import ctypes
def possible(profile):
    count, room = ctypes.c_uint(0), (n.c_nvmlGpuInstancePlacement_t * 8)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(h, profile, None, ctypes.byref(count))
    n.nvmlDeviceGetGpuInstancePossiblePlacements(h, profile, room, ctypes.byref(count))
    return [[room[i].start, room[i].size] for i in range(count.value)]
out = {profile: possible(profile) for profile in (19, 15, 14, 9, 5, 0)}
"""


def test_placements_are_as_published(a100: Node) -> None:
    assert nvml(a100, PLACEMENTS) == {
        "19": [[start, 1] for start in range(7)],
        "15": [[start, 2] for start in (0, 2, 4, 6)],
        "14": [[start, 2] for start in (0, 2, 4)],
        "9": [[0, 4], [4, 4]],
        "5": [[0, 4]],
        "0": [[0, 8]],
    }, "also with MIG off"


GUIDE = """
left = lambda: [n.nvmlDeviceGetGpuInstanceRemainingCapacity(h, p) for p in (19, 20, 15, 14, 9, 5, 0)]
out = [left()]
for profile in (19, 14, 5):
    info = n.nvmlGpuInstanceGetInfo(n.nvmlDeviceCreateGpuInstance(h, profile))
    out.append([info.id, info.placement.start, info.placement.size, *left()])
out.append(code(n.nvmlDeviceCreateGpuInstance, h, 19))
"""


def test_instances_take_places_as_in_the_user_guide(mig_a100: Node) -> None:
    assert nvml(mig_a100, GUIDE) == [
        [7, 1, 4, 3, 2, 1, 1],
        [13, 6, 1, 6, 1, 3, 3, 1, 1, 0],
        [5, 4, 2, 4, 1, 2, 2, 1, 1, 0],
        [1, 0, 4, 0, 0, 0, 0, 0, 0, 0],
        NO_RESOURCES,
    ]


PLACED = """
def at(profile, start, size):
    return code(n.nvmlDeviceCreateGpuInstanceWithPlacement, h, profile,
                n.byref(n.c_nvmlGpuInstancePlacement_t(start, size)))
out = [at(9, 4, 4), at(19, 5, 1), at(14, 4, 2), at(14, 1, 2), at(14, 0, 3), at(19, 7, 1), at(14, 2, 2),
       at(20, 0, 1), at(20, 1, 1), at(99, 0, 1)]
"""


def test_a_place_is_had_once_and_only_where_the_profile_allows_it(mig_a100: Node) -> None:
    assert nvml(mig_a100, PLACED) == [
        *(0, NO_RESOURCES, NO_RESOURCES),
        *(INVALID, INVALID, INVALID),
        *(0, 0),
        NO_RESOURCES,  # one set of media engines
        NOT_SUPPORTED,
    ]
    assert [(found["profile"], found["start"]) for found in instances(mig_a100)] == [
        ("3g.20gb", 4),
        ("2g.10gb", 2),
        ("1g.5gb+me", 0),
    ]


COMPUTES = """
g = n.nvmlDeviceCreateGpuInstance(h, 9)
left = lambda: [n.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(g, p) for p in (0, 1, 2)]
out = [left()]
made = [n.nvmlGpuInstanceCreateComputeInstance(g, 0) for _ in range(3)]
out += [left(), code(n.nvmlGpuInstanceCreateComputeInstance, g, 0), code(n.nvmlGpuInstanceDestroy, g)]
out.append(code(n.nvmlGpuInstanceCreateComputeInstance, g, 3))
out.append([(i.id, i.profileId, i.placement.start, i.placement.size)
            for i in map(n.nvmlComputeInstanceGetInfo, made)])
out.append(n.nvmlComputeInstanceGetInfo(n.nvmlGpuInstanceGetComputeInstanceById(g, 2)).id)
out.append(code(n.nvmlGpuInstanceGetComputeInstanceById, g, 3))
info = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(g, 1, 0)
out.append([info.sliceCount, info.instanceCount, info.multiprocessorCount, info.sharedDecoderCount])
out.append([n.nvmlComputeInstanceDestroy(c) for c in made[:1]])
out.append([left(), code(n.nvmlComputeInstanceDestroy, made[0])])
n.nvmlComputeInstanceDestroy(made[1]); n.nvmlComputeInstanceDestroy(made[2])
whole = n.nvmlGpuInstanceCreateComputeInstance(g, 2)
out.append([left(), code(n.nvmlComputeInstanceDestroy, whole), code(n.nvmlGpuInstanceDestroy, g),
            code(n.nvmlGpuInstanceGetInfo, g)])
"""


def test_compute_instances_divide_a_gpu_instance(mig_a100: Node) -> None:
    assert nvml(mig_a100, COMPUTES) == [
        [3, 1, 1],
        *([0, 0, 0], NO_RESOURCES, IN_USE, NOT_SUPPORTED),
        [[0, 0, 0, 1], [1, 0, 1, 1], [2, 0, 2, 1]],
        *(2, NOT_FOUND),
        [2, 1, 28, 2],
        [0],
        [[1, 0, 0], INVALID],
        [[0, 0, 0], 0, 0, INVALID],
    ]


DEVICES = """
out = []
for i in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
    error = code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, i)
    if error:
        out.append(error)
        continue
    d = n.nvmlDeviceGetMigDeviceHandleByIndex(h, i)
    a, uuid = n.nvmlDeviceGetAttributes(d), n.nvmlDeviceGetUUID(d)
    found = n.nvmlDeviceGetHandleByUUID(uuid)
    assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(d)) == n.nvmlDeviceGetUUID(h)
    out.append([n.nvmlDeviceGetName(d), uuid, n.nvmlDeviceGetIndex(d), n.nvmlDeviceGetGpuInstanceId(d),
                n.nvmlDeviceGetComputeInstanceId(d), n.nvmlDeviceGetIndex(found),
                n.nvmlDeviceGetMemoryInfo(d).total >> 20, a.memorySizeMB, a.multiprocessorCount,
                a.gpuInstanceSliceCount, a.computeInstanceSliceCount, n.nvmlDeviceIsMigDeviceHandle(d)])
"""


def test_a_compute_instance_is_a_device(mig_a100: Node) -> None:
    partition(mig_a100, "3g.20gb", compute="2,1")
    partition(mig_a100, "1g.5gb")
    shown = nvml(mig_a100, DEVICES)
    name = "Simulated NVIDIA A100-SXM4-40GB MIG "
    (one, two, three), rest = shown[:3], shown[3:]
    assert rest == [NOT_FOUND] * 4
    assert (one[0], two[0], three[0]) == (name + "2c.3g.20gb", name + "1c.3g.20gb", name + "1g.5gb")
    assert [row[1] for row in (one, two, three)] == uuids(mig_a100)
    assert all(
        re.fullmatch(r"MIG-\w{8}-\w{4}-5\w{3}-[89ab]\w{3}-\w{12}", row[1]) for row in (one, two, three)
    )
    assert one[2:] == [0, 2, 0, 0, 20096, 20096, 28, 3, 2, 1]
    assert two[2:] == [1, 2, 2, 1, 20096, 20096, 14, 3, 1, 1]
    assert three[2:] == [2, 10, 0, 2, 4864, 4864, 14, 1, 1, 1]


def test_the_same_place_has_the_same_uuid_again(mig_a100: Node) -> None:
    partition(mig_a100, "2g.10gb:2")
    first = uuids(mig_a100)
    mig(mig_a100, "destroy", "--gpu", "0")
    partition(mig_a100, "1g.5gb:2")
    other = uuids(mig_a100)
    mig(mig_a100, "destroy", "--gpu", "0")
    partition(mig_a100, "2g.10gb:2")
    assert uuids(mig_a100) == first != other


STALE = """
g = n.nvmlDeviceCreateGpuInstance(h, 19)
c = n.nvmlGpuInstanceCreateComputeInstance(g, 0)
d = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
out = [code(n.nvmlDeviceGetName, d), code(n.nvmlDeviceGetMigMode, d), code(n.nvmlDeviceGetPowerUsage, d)]
n.nvmlComputeInstanceDestroy(c)
out += [code(n.nvmlDeviceGetName, d), code(n.nvmlDeviceGetGpuInstanceId, d), code(n.nvmlDeviceGetUUID, h)]
n.nvmlGpuInstanceDestroy(g)
out += [code(n.nvmlGpuInstanceDestroy, g), code(n.nvmlGpuInstanceCreateComputeInstance, g, 0)]
out += [code(n.nvmlDeviceGetGpuInstanceId, h), code(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, h)]
"""


def test_handles_of_what_is_gone_are_invalid(mig_a100: Node) -> None:
    assert nvml(mig_a100, STALE) == [
        *(0, NOT_SUPPORTED, NOT_SUPPORTED),
        *(INVALID, INVALID, 0),
        *(INVALID, INVALID),
        *(INVALID, INVALID),
    ]


LISTED = """
g = [n.nvmlDeviceCreateGpuInstance(h, 19) for _ in range(3)] + [n.nvmlDeviceCreateGpuInstance(h, 9)]
import ctypes
def listed(profile):
    count, room = ctypes.c_uint(0), (n.c_nvmlGpuInstance_t * 7)()
    n.nvmlDeviceGetGpuInstances(h, profile, room, ctypes.byref(count))
    return [n.nvmlGpuInstanceGetInfo(room[i]).id for i in range(count.value)]
out = [listed(19), listed(9), listed(14), n.nvmlGpuInstanceGetInfo(n.nvmlDeviceGetGpuInstanceById(h, 1)).id,
       code(n.nvmlDeviceGetGpuInstanceById, h, 2)]
"""


def test_instances_are_listed_by_profile_and_found_by_id(mig_a100: Node) -> None:
    assert nvml(mig_a100, LISTED) == [[11, 12, 13], [1], [], 1, NOT_FOUND]


UNPRIVILEGED = """
os.seteuid(65534)
out = [code(n.nvmlDeviceGetMigMode, h), code(n.nvmlDeviceGetGpuInstanceProfileInfo, h, 0),
       code(n.nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
       code(n.nvmlDeviceSetMigMode, h, 0), code(n.nvmlDeviceCreateGpuInstance, h, 19),
       code(n.nvmlDeviceGetGpuInstanceById, h, 13), code(n.nvmlDeviceGetGpuInstanceRemainingCapacity, h, 19)]
"""


def test_only_root_changes_and_lists_instances(mig_a100: Node) -> None:
    partition(mig_a100, "1g.5gb")
    assert nvml(mig_a100, UNPRIVILEGED) == [0, 0, 0, *([NO_PERMISSION] * 4)]


UNTOLD = """
out = [code(n.nvmlDeviceGetUtilizationRates, h), code(n.nvmlDeviceGetProcessUtilization, h, 0),
       code(n.nvmlDeviceGetSamples, h, n.NVML_GPU_UTILIZATION_SAMPLES, 0),
       code(n.nvmlDeviceGetEncoderUtilization, h), n.nvmlDeviceGetAccountingMode(h),
       code(n.nvmlDeviceGetMemoryInfo, h)]
"""


def test_utilization_is_not_told_of_a_gpu_in_mig_mode(mig_a100: Node) -> None:
    assert nvml(mig_a100, UNTOLD) == [*([NOT_SUPPORTED] * 4), 0, 0]


TOLD = """
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(h, n.nvmlEventMigConfigChange, events)
n.nvmlDeviceCreateGpuInstance(h, 19)
out = [n.nvmlEventSetWait_v2(events, 20000).eventType == n.nvmlEventMigConfigChange]
"""


def test_a_change_is_an_event(mig_a100: Node) -> None:
    assert nvml(mig_a100, TOLD) == [True]


def test_the_tool_shows_mig_devices(mig_a100: Node) -> None:
    partition(mig_a100, "3g.20gb", "1g.5gb")
    screen = smi(mig_a100).stdout
    assert len({len(line) for line in screen.splitlines()}) == 1, "the frame is straight"
    assert re.search(r"\| +0 +MIG 3g.20gb +GI +2 +CI +0 +0MiB / +20096MiB", screen)
    gpu, *devices = smi(mig_a100, "-L").stdout.splitlines()
    assert gpu.startswith("GPU 0: Simulated NVIDIA A100")
    assert [re.sub(r"\s+", " ", line).strip() for line in devices] == [
        f"MIG 3g.20gb Device 0: (UUID: {uuids(mig_a100)[0]})",
        f"MIG 1g.5gb Device 1: (UUID: {uuids(mig_a100)[1]})",
    ]


def test_the_commands_of_the_readme_work(a100: Node) -> None:
    page = (REPOSITORY / "shim" / "sim" / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^aliquot-sim mig ([^#\n]*)", page, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        mig(a100, *command.split())
    assert [found["profile"] for found in instances(a100)] == ["3g.20gb"] * 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["mig"], 2, "there are on, off, create"),
        (["mig", "on"], 1, "--gpu is missing"),
        (["mig", "create", "--gpu", "0"], 2, "there are 1g.5gb 1g.5gb+me"),
        (["mig", "create", "--gpu", "0", "--profile", "3g.40gb"], 2, "there are 1g.5gb"),
        (["mig", "create", "--gpu", "0", "--profile", "1g.5gb:x"], 2, "there are 1g.5gb"),
        (["mig", "create", "--gpu", "0", "--profile", "2g.10gb:1"], 1, "something is in its place"),
        (["mig", "create", "--gpu", "0", "--profile", "3g.20gb", "--compute", "5"], 2, "give sizes"),
        (["mig", "create", "--gpu", "0", "--profile", "3g.20gb", "--compute", "2,2"], 1, "in its place"),
        (["mig", "destroy", "--gpu", "0", "--instance", "3"], 1, "no such instance"),
        (["mig", "destroy", "--gpu", "0", "--instance", "14"], 2, "give a number from 0 to 13"),
        (["inject", "hold", "--gpu", "0", "--memory", "1Gi"], 1, "give the UUID of a MIG device"),
    ],
)
def test_the_tool_refuses_in_words(mig_a100: Node, arguments: list[str], status: int, message: str) -> None:
    refused = mig_a100.tool(*arguments)
    assert (refused.returncode, instances(mig_a100)) == (status, [])
    assert message in refused.stderr
