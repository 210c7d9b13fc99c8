# SPDX-License-Identifier: Apache-2.0
"""Injected faults are seen by NVML and CUDA of all processes, and events wake whoever waits."""

import re
import signal
import struct
import subprocess
import threading
import time

import pytest

from shim.sim.tests.simnode import CONTEXT, MIB, Node, Probe, wait_until

ECC, XID, CLOCK = 2, 8, 16
LOST = 15
RECOVERY_ACTION = 230
TIMEOUT = 10
OUT_OF_MEMORY = 2


def device(probe: Probe, index: int = 0) -> int:
    assert probe.code("nvmlInit_v2") == 0
    handle: int = probe.call("nvmlDeviceGetHandleByIndex_v2", index, {"out": 0}).outputs[0]
    return handle


def listen(probe: Probe, types: int = ECC | XID | CLOCK, index: int = 0) -> tuple[int, int]:
    """(device, event set) of a program that listens."""
    handle = device(probe, index)
    events: int = probe.call("nvmlEventSetCreate", {"out": 0}).outputs[0]
    assert probe.code("nvmlDeviceRegisterEvents", handle, types, events) == 0
    return handle, events


def wait(probe: Probe, events: int, timeout_ms: int = 5000) -> tuple[int, int, int, int]:
    """(code, device, type, data) of the next event."""
    answer = probe.call("nvmlEventSetWait_v2", events, {"bytes": "00" * 32}, timeout_ms)
    raw = bytes.fromhex(answer.outputs[0])
    found = [int.from_bytes(raw[i : i + 8], "little") for i in (0, 8, 16)]
    return answer.code, found[0], found[1], found[2]


def inject(node: Node, *arguments: str) -> None:
    done = node.tool("inject", *arguments)
    assert done.returncode == 0, done.stderr


def test_an_xid_reaches_every_listener(empty_node: Node) -> None:
    empty_node.init("l4:2")
    listeners = [empty_node.probe(), empty_node.probe()]
    sets = [listen(probe) for probe in listeners]
    inject(empty_node, "xid", "--gpu", "1", "--code", "31")
    for code in ("13", "79"):
        inject(empty_node, "xid", "--gpu", empty_node.gpu(0)["uuid"], "--code", code)
    for probe, (handle, events) in zip(listeners, sets, strict=True):
        assert [wait(probe, events) for _ in range(2)] == [(0, handle, XID, 13), (0, handle, XID, 79)]
        assert wait(probe, events, 0)[0] == TIMEOUT


def test_a_waiting_listener_wakes_at_once(node: Node) -> None:
    probe = node.probe()
    _, events = listen(probe)
    answers: list[tuple[int, int, int, int]] = []
    thread = threading.Thread(target=lambda: answers.append(wait(probe, events, 20000)))
    started = time.monotonic()
    thread.start()
    inject(node, "xid", "--gpu", "0", "--code", "63")
    thread.join()
    assert (answers[0][0], answers[0][3]) == (0, 63)
    assert time.monotonic() - started < 10


def test_only_what_was_registered_and_came_later_is_delivered(node: Node) -> None:
    inject(node, "xid", "--gpu", "0", "--code", "1")
    probe = node.probe()
    _, events = listen(probe, CLOCK)
    inject(node, "xid", "--gpu", "0", "--code", "2")
    inject(node, "throttle", "--gpu", "0")
    assert wait(probe, events)[2] == CLOCK
    assert wait(probe, events, 0)[0] == TIMEOUT


def test_a_listener_that_slept_through_many_sees_the_last_ones(node: Node) -> None:
    probe = node.probe()
    _, events = listen(probe)
    for code in range(1, 301):
        inject(node, "xid", "--gpu", "0", "--code", str(code))
    seen = [wait(probe, events)[3] for _ in range(256)]
    assert seen == list(range(45, 301))


def test_event_sets_refuse_nonsense(node: Node) -> None:
    probe = node.probe()
    assert probe.code("nvmlEventSetCreate", {"out": 0}) == 1
    handle, events = listen(probe)
    mask = probe.call("nvmlDeviceGetSupportedEventTypes", handle, {"out": 0}).outputs[0]
    assert mask & (ECC | XID | CLOCK) == ECC | XID | CLOCK
    assert probe.code("nvmlDeviceRegisterEvents", handle, 1 << 40, events) == 2
    assert probe.code("nvmlDeviceRegisterEvents", handle, 0x80, events) == 3
    assert probe.code("nvmlDeviceRegisterEvents", handle, XID, 0) == 2
    assert probe.code("nvmlEventSetWait_v2", events, 0, 0) == 2
    assert probe.code("nvmlEventSetFree", events) == 0


def test_the_first_abi_of_wait_ends_after_the_data(node: Node) -> None:
    probe = node.probe()
    _, events = listen(probe)
    inject(node, "xid", "--gpu", "0", "--code", "45")
    answer = probe.call("nvmlEventSetWait", events, {"bytes": "ee" * 32}, 1000)
    assert answer.code == 0
    assert answer.outputs[0][48:] == "ee" * 8


def test_memory_errors_are_counted_until_recovery(node: Node) -> None:
    probe = node.probe()
    handle, events = listen(probe)
    inject(node, "ecc", "--gpu", "0", "--count", "3")
    assert [wait(probe, events)[2:] for _ in range(2)] == [(ECC, 0), (XID, 48)]
    total = "nvmlDeviceGetTotalEccErrors"
    assert [probe.call(total, handle, 1, kind, {"out": 9}).outputs for kind in (0, 1)] == [[3], [3]]
    assert probe.call(total, handle, 0, 0, {"out": 9}).outputs == [0]
    located = "nvmlDeviceGetMemoryErrorCounter"
    assert [probe.call(located, handle, 1, 0, place, {"out": 9}).outputs[0] for place in (2, 7)] == [3, 0]
    assert probe.call(total, handle, 2, 0, {"out": 9}).code == 2
    assert (node.gpu()["ecc"], node.gpu()["xid"]) == (3, 48)
    inject(node, "recover", "--gpu", "0")
    assert [probe.call(total, handle, 1, kind, {"out": 9}).outputs for kind in (0, 1)] == [[0], [3]]


@pytest.mark.parametrize("name", ["Event", "Throttle"])
def test_throttling_is_a_reason_for_low_clocks(node: Node, name: str) -> None:
    probe = node.probe()
    handle = device(probe)
    current = f"nvmlDeviceGetCurrentClocks{name}Reasons"
    assert probe.call(current, handle, {"out": 0}).outputs[0] & ~1 == 0
    inject(node, "throttle", "--gpu", "0")
    thermal = probe.call(current, handle, {"out": 0}).outputs[0]
    assert thermal == 0x48
    supported = probe.call(f"nvmlDeviceGetSupportedClocks{name}Reasons", handle, {"out": 0}).outputs[0]
    assert supported & thermal == thermal
    inject(node, "throttle", "--gpu", "0", "--off")
    assert probe.call(current, handle, {"out": 0}).outputs[0] & ~1 == 0


def test_a_lost_gpu_answers_so_and_its_neighbour_goes_on(empty_node: Node) -> None:
    empty_node.init("l4:2")
    probe = empty_node.probe()
    probe.start()
    address = probe.allocate(MIB)
    handle, events = listen(probe)
    other = device(probe, 1)
    inject(empty_node, "lost", "--gpu", "0")
    assert wait(probe, events) == (0, handle, XID, 79)
    assert wait(probe, events)[0] == LOST
    assert probe.code("nvmlDeviceGetUtilizationRates", handle, {"out": 0}) == LOST
    assert probe.code("nvmlDeviceGetUtilizationRates", other, {"out": 0}) == 0
    assert probe.code("cuMemAlloc_v2", {"out": 0}, 1) == 999
    assert probe.code("cuMemFree_v2", address) == 999
    assert probe.code("cuCtxSynchronize") == 999
    assert empty_node.probe().start(1) > 0
    late = empty_node.probe()
    assert late.code("cuInit", 0) == 0
    assert late.code("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == 999
    inject(empty_node, "recover", "--gpu", "0")
    assert probe.code("cuMemFree_v2", address) == 0
    assert probe.code("nvmlDeviceGetUtilizationRates", handle, {"out": 0}) == 0


def fields(probe: Probe, handle: int, *numbers: int) -> list[tuple[int, int]]:
    """(return code, value) of each field."""
    asked = b"".join(struct.pack("<IIqqiiQ", number, 0, 0, 0, 0, 0, 0) for number in numbers)
    answer = probe.call("nvmlDeviceGetFieldValues", handle, len(numbers), {"bytes": asked.hex()})
    assert answer.code == 0
    rows = struct.iter_unpack("<IIqqiiQ", bytes.fromhex(answer.outputs[0]))
    return [(code, value & 0xFFFFFFFF) for *_, code, value in rows]


@pytest.mark.parametrize(("code", "action"), [(13, 0), (31, 0), (48, 1), (79, 1)])
def test_a_fatal_xid_asks_for_a_reset_until_it_came(node: Node, code: int, action: int) -> None:
    probe = node.probe()
    handle = device(probe)
    assert fields(probe, handle, RECOVERY_ACTION, 999) == [(0, 0), (3, 0)]
    inject(node, "xid", "--gpu", "0", "--code", str(code))
    inject(node, "xid", "--gpu", "0", "--code", "43")
    assert fields(probe, handle, RECOVERY_ACTION) == [(0, action)]
    inject(node, "recover", "--gpu", "0")
    assert fields(probe, handle, RECOVERY_ACTION) == [(0, 0)]


def test_held_memory_belongs_to_a_process_until_it_is_killed(node: Node) -> None:
    command = [str(node.build / "aliquot-sim"), "inject", "hold", "--gpu", "0", "--memory", "1Gi"]
    holder = subprocess.Popen(command, env=node.environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout
        assert re.match(rf"process {holder.pid} holds 1024 MiB", holder.stdout.readline())
        probe = node.probe()
        probe.start()
        assert (holder.pid, 1024 * MIB) in probe.listed()
        assert node.gpu()["used"] == 1024 * MIB + CONTEXT
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    wait_until(lambda: node.gpu()["used"] == CONTEXT, "the memory of the killed holder")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inject"], "there are xid, ecc"),
        (["inject", "fire", "--gpu", "0"], "inject fire: there are xid, ecc"),
        (["inject", "lost"], "--gpu is missing"),
        (["inject", "lost", "--gpu", "7"], "--gpu 7: no such GPU; give 0 to 0"),
        (["inject", "lost", "--gpu", "GPU-"], "--gpu GPU-: no such GPU"),
        (["inject", "xid", "--gpu", "0"], "needs --code"),
        (["inject", "xid", "--gpu", "0", "--code", "x"], "--code x: give a number"),
        (["inject", "xid", "--gpu", "0", "--code", "9999"], "from 1 to 1023"),
        (["inject", "hold", "--gpu", "0"], "needs --memory"),
        (["inject", "hold", "--gpu", "0", "--memory", "5Xi"], "--memory 5Xi: give bytes"),
        (["inject", "hold", "--gpu", "0", "--memory", "99Gi"], "the GPU has only 22578 MiB left"),
    ],
)
def test_bad_faults_are_refused_in_words(node: Node, arguments: list[str], message: str) -> None:
    refused = node.tool(*arguments)
    assert refused.returncode != 0
    assert message in refused.stderr
    assert node.gpu()["used"] == 0


def test_so_many_requests_for_memory_are_refused(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert node.tool("inject", "oom", "--gpu", "0", "--count", "2").returncode == 0
    assert node.gpu()["oom"] is True
    handle = {"out": 7}
    refused = [probe.call("cuMemAlloc_v2", handle, MIB) for _ in range(2)]
    assert [(answer.code, answer.outputs) for answer in refused] == [(OUT_OF_MEMORY, [7])] * 2
    assert probe.call("cuMemAlloc_v2", handle, MIB).code == 0
    assert node.gpu()["oom"] is False


def test_all_requests_for_memory_are_refused_until_that_is_over(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert node.tool("inject", "oom", "--gpu", "0").returncode == 0
    used = node.gpu()["used"]
    assert {probe.call("cuMemAlloc_v2", {"out": 0}, MIB).code for _ in range(5)} == {OUT_OF_MEMORY}
    assert probe.call("cuCtxCreate_v2", {"out": 0}, 0, 0).code == OUT_OF_MEMORY
    assert node.gpu()["used"] == used
    assert node.tool("inject", "oom", "--gpu", "0", "--off").returncode == 0
    assert probe.call("cuMemAlloc_v2", {"out": 0}, MIB).code == 0


def test_calls_of_a_slow_gpu_take_longer(node: Node) -> None:
    probe = node.probe()
    probe.start()
    assert node.tool("inject", "slow", "--gpu", "0", "--us", "30000").returncode == 0
    begin = time.monotonic()
    probe.info()
    assert time.monotonic() - begin >= 0.03
    assert node.gpu()["slow_us"] == 30000
    assert node.tool("inject", "recover", "--gpu", "0").returncode == 0
    assert node.gpu()["slow_us"] == 0


def test_a_fault_that_lacks_its_figure_is_refused(node: Node) -> None:
    assert "--us" in node.tool("inject", "slow", "--gpu", "0").stderr
