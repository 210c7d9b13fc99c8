# SPDX-License-Identifier: Apache-2.0
from aliquot_agent import devices
from aliquot_agent.errors import NvmlError
from aliquot_agent.hardware import READINESS, Cause, Hardware
from aliquot_agent.nodepolicy import GpuOverride, GpuPolicy, NodePolicy, Order
from aliquot_agent.nvml import Gpu, GpuProcess, Inventory, Problem
from aliquot_agent.readiness import Readiness
from tests.unit.agent.kit import make_gpu

MIB = 1024**2


class FakeNvml:
    """NVML with GPUs that come and go; `error` is what it says instead."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.problems: tuple[Problem, ...] = ()
        self.error = ""
        self.opened = 0
        self.closed = 0

    def open(self) -> "FakeNvml":
        self.opened += 1
        return self

    def inventory(self) -> Inventory:
        if self.error:
            raise NvmlError(self.error)
        return Inventory(gpus=self.gpus, problems=self.problems)

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        return (GpuProcess(host_pid=1, used_bytes=5),) if gpu_uuid == self.gpus[0].uuid else ()

    def close(self) -> None:
        self.closed += 1


def make_hardware(nvml: FakeNvml, readiness: Readiness, *, policy: NodePolicy | None = None) -> Hardware:
    return Hardware(
        open_nvml=nvml.open,  # type: ignore[arg-type] # same three methods
        readiness=readiness,
        policy=lambda: policy or NodePolicy(),
    )


def test_devices_come_in_the_order_of_nvml() -> None:
    nvml = FakeNvml(make_gpu(1), make_gpu(0))
    hardware = make_hardware(nvml, Readiness())
    assert hardware.refresh()
    assert [device["attributes"]["minor"]["int"] for device in hardware.published()] == [0, 1]
    assert not hardware.refresh()
    assert nvml.opened == 1


def test_one_broken_gpu_hides_no_other() -> None:
    nvml = FakeNvml(make_gpu(1))
    nvml.problems = (Problem(0, "Unknown Error"),)
    hardware = make_hardware(nvml, Readiness())
    hardware.refresh()
    assert [gpu.index for gpu in hardware.by_device().values()] == [1]


def test_a_silent_driver_is_said_and_asked_again() -> None:
    readiness, nvml = Readiness(), FakeNvml(make_gpu(0))
    nvml.error = "driver is reloading"
    hardware = make_hardware(nvml, readiness)
    hardware.refresh()
    assert hardware.published() == []
    assert readiness.reasons() == {READINESS: "driver is reloading"}
    nvml.error = ""
    assert hardware.refresh()
    assert readiness.reasons() == {}


def test_a_gpu_too_small_for_a_mebibyte_is_not_published() -> None:
    hardware = make_hardware(FakeNvml(make_gpu(0, memory_bytes=1000)), Readiness())
    hardware.refresh()
    assert hardware.published() == []


def test_a_gpu_is_busy_while_it_has_processes_or_cannot_say() -> None:
    one, two = make_gpu(0), make_gpu(1)
    hardware = make_hardware(FakeNvml(one, two), Readiness())
    assert hardware.busy(two.uuid)  # NVML is not open yet
    hardware.refresh()
    assert (hardware.busy(one.uuid), hardware.busy(two.uuid)) == (True, False)


def test_the_memory_of_a_gpu_is_known_while_nvml_shows_it() -> None:
    gpu = make_gpu(0)
    nvml = FakeNvml(gpu)
    hardware = make_hardware(nvml, Readiness())
    hardware.refresh()
    assert hardware.memory_bytes(gpu.uuid) == gpu.memory_bytes
    nvml.error = "driver is reloading"
    hardware.refresh()
    assert hardware.memory_bytes(gpu.uuid) is None


def test_nvml_is_opened_anew_after_it_failed() -> None:
    nvml = FakeNvml(make_gpu(0))
    hardware = make_hardware(nvml, Readiness())
    hardware.refresh()
    nvml.error = "uninitialized"
    hardware.refresh()
    assert (nvml.opened, nvml.closed) == (1, 1)
    assert hardware.busy(make_gpu(0).uuid)
    nvml.error = ""
    assert hardware.refresh()
    hardware.refresh()
    assert (nvml.opened, nvml.closed) == (2, 1)


def test_a_gpu_that_is_held_whole_shows_no_more_than_was_handed_out() -> None:
    one, two = make_gpu(0, memory_bytes=1000 * MIB), make_gpu(1, memory_bytes=1000 * MIB)
    hardware = make_hardware(FakeNvml(one, two), Readiness())
    hardware.refresh()
    shown = hardware.published(most_bytes={devices.device_name(one.uuid): 900 * MIB})
    assert [device["capacity"]["memory"]["value"] for device in shown] == ["900Mi", "1000Mi"]
    assert [device["attributes"]["memoryBytes"]["int"] for device in shown] == [1000 * MIB, 1000 * MIB]


def test_a_gpu_that_fell_off_the_bus_stays_known() -> None:
    one, two = make_gpu(0), make_gpu(1)
    nvml = FakeNvml(one, two)
    hardware = make_hardware(nvml, Readiness())
    hardware.refresh()
    nvml.gpus, nvml.problems = (two,), (Problem(0, "GPU is lost", lost=True),)
    assert not hardware.refresh()
    assert set(hardware.by_device().values()) == {one, two}
    assert hardware.left_out() == ()


def test_a_gpu_that_was_never_seen_and_is_lost_is_left_out() -> None:
    nvml = FakeNvml(make_gpu(1))
    nvml.problems = (Problem(0, "GPU is lost", lost=True),)
    hardware = make_hardware(nvml, Readiness())
    hardware.refresh()
    assert [(each.index, each.cause) for each in hardware.left_out()] == [(0, Cause.ERROR)]


def test_what_is_left_out_is_said_with_its_cause() -> None:
    gpus = [make_gpu(index) for index in range(1, 5)]
    nvml = FakeNvml(*gpus)
    nvml.problems = (Problem(0, "MIG mode is on", mig=True),)
    policy = NodePolicy(gpus=(GpuOverride(indices=(2,), stated={"publish": False}),))
    hardware = make_hardware(nvml, Readiness(), policy=policy)
    hardware.refresh()
    assert hardware.own({gpus[0].uuid: "a device plugin hands it out as nvidia.com/gpu"})
    assert not hardware.own({gpus[0].uuid: "a device plugin hands it out as nvidia.com/gpu"})
    full = {devices.device_name(gpus[2].uuid): gpus[2].memory_bytes}
    published = hardware.published(withheld_bytes=full)
    assert [device["name"] for device in published] == [devices.device_name(gpus[3].uuid)]
    causes = [(each.index, each.cause) for each in hardware.left_out()]
    assert causes == [(0, Cause.MIG), (1, Cause.OWNED), (2, Cause.CONFIGURED), (3, Cause.FULL)]


def test_what_is_withheld_lowers_the_capacity_and_not_the_size() -> None:
    gpu = make_gpu(0, memory_bytes=1000 * MIB)
    hardware = make_hardware(
        FakeNvml(gpu), Readiness(), policy=NodePolicy(defaults=GpuPolicy(reserve_bytes=MIB))
    )
    hardware.refresh()
    [device] = hardware.published(withheld_bytes={devices.device_name(gpu.uuid): 100 * MIB + 1})
    assert device["capacity"]["memory"]["value"] == "898Mi"
    assert device["attributes"]["memoryBytes"]["int"] == 999 * MIB


def test_the_order_follows_what_is_taken() -> None:
    one, two = make_gpu(0), make_gpu(1)
    hardware = make_hardware(FakeNvml(one, two), Readiness(), policy=NodePolicy(order=Order.SPREAD))
    hardware.refresh()
    taken = {devices.device_name(one.uuid): one.memory_bytes // 2}
    names = [device["name"] for device in hardware.published(taken_bytes=taken)]
    assert names == [devices.device_name(two.uuid), devices.device_name(one.uuid)]
