# SPDX-License-Identifier: Apache-2.0
from aliquot_agent import devices
from aliquot_agent.errors import NvmlError
from aliquot_agent.hardware import READINESS, Hardware
from aliquot_agent.nvml import Gpu, GpuProcess, Inventory
from aliquot_agent.readiness import Readiness
from tests.unit.agent.kit import make_gpu

MIB = 1024**2


class FakeNvml:
    """NVML with GPUs that come and go; `error` is what it says instead."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.problems: tuple[tuple[int, str], ...] = ()
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


def make_hardware(nvml: FakeNvml, readiness: Readiness) -> Hardware:
    return Hardware(
        open_nvml=nvml.open,  # type: ignore[arg-type] # same three methods
        readiness=readiness,
        reserve_bytes=0,
        shares_per_gpu=16,
    )


def test_devices_come_in_the_order_of_nvml() -> None:
    nvml = FakeNvml(make_gpu(1), make_gpu(0))
    hardware = make_hardware(nvml, Readiness())
    assert hardware.refresh()
    assert [device["attributes"]["minor"]["int"] for device in hardware.published(most_bytes={})] == [0, 1]
    assert not hardware.refresh()
    assert nvml.opened == 1


def test_one_broken_gpu_hides_no_other() -> None:
    nvml = FakeNvml(make_gpu(1))
    nvml.problems = ((0, "GPU is lost"),)
    hardware = make_hardware(nvml, Readiness())
    hardware.refresh()
    assert [gpu.index for gpu in hardware.by_device().values()] == [1]


def test_a_silent_driver_is_said_and_asked_again() -> None:
    readiness, nvml = Readiness(), FakeNvml(make_gpu(0))
    nvml.error = "driver is reloading"
    hardware = make_hardware(nvml, readiness)
    hardware.refresh()
    assert hardware.published(most_bytes={}) == []
    assert readiness.reasons() == {READINESS: "driver is reloading"}
    nvml.error = ""
    assert hardware.refresh()
    assert readiness.reasons() == {}


def test_a_gpu_too_small_for_a_mebibyte_is_not_published() -> None:
    hardware = make_hardware(FakeNvml(make_gpu(0, memory_bytes=1000)), Readiness())
    hardware.refresh()
    assert hardware.published(most_bytes={}) == []


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
    assert [device["attributes"]["memoryBytes"]["int"] for device in shown] == [900 * MIB, 1000 * MIB]
