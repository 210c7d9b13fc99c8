# SPDX-License-Identifier: Apache-2.0
"""This node's GPUs as the rest of the agent sees them: NVML's last answer."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from aliquot_agent import devices
from aliquot_agent.devices import Device
from aliquot_agent.errors import NvmlError
from aliquot_agent.nvml import Gpu, GpuProcess, Inventory, Nvml
from aliquot_agent.readiness import Readiness

logger = logging.getLogger(__name__)

READINESS: Final = "nvml"


class Hardware:
    """GPUs by device name. Thread-safe; `refresh` by one thread at a time."""

    def __init__(
        self,
        *,
        open_nvml: Callable[[], Nvml],
        readiness: Readiness,
        reserve_bytes: int,
        shares_per_gpu: int,
    ) -> None:
        self._open_nvml = open_nvml
        self._readiness = readiness
        self._reserve_bytes = reserve_bytes
        self._shares_per_gpu = shares_per_gpu
        self._nvml: Nvml | None = None
        self._gpus: Mapping[str, Gpu] = {}
        self._problems: tuple[tuple[int, str], ...] = ()

    def refresh(self) -> bool:
        """Asks NVML again, opening it anew where that failed before; whether the GPUs are others now."""
        try:
            if self._nvml is None:
                self._nvml = self._open_nvml()
            inventory = self._nvml.inventory()
        except NvmlError as error:
            if self._readiness.reasons().get(READINESS) != str(error):
                logger.error("NVML does not answer", extra={"error": str(error)})
            self._readiness.refuse(READINESS, str(error))
            self.close()
            inventory = Inventory(gpus=(), problems=())
        else:
            self._readiness.allow(READINESS)
        if inventory.problems != self._problems:
            for index, problem in inventory.problems:
                logger.error("GPU left out", extra={"index": index, "problem": problem})
            self._problems = inventory.problems
        gpus = {devices.device_name(gpu.uuid): gpu for gpu in inventory.gpus}
        changed, self._gpus = gpus != self._gpus, gpus
        return changed

    def close(self) -> None:
        """Gives NVML back."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.close()

    def by_device(self) -> Mapping[str, Gpu]:
        """GPUs that are published, by device name."""
        return self._gpus

    def published(self, *, most_bytes: Mapping[str, int]) -> list[Device]:
        """The devices of our slice, in the order of NVML.

        `most_bytes` caps devices that are held whole: what they show must not grow into room for others.
        """
        return [
            devices.build(
                gpu,
                reserve_bytes=self._reserve_bytes,
                shares=self._shares_per_gpu,
                place=devices.pci_place(gpu.pci_bus_id),
                most_bytes=most_bytes.get(device),
            )
            for device, gpu in sorted(self._gpus.items(), key=lambda item: item[1].index)
            if devices.shareable_bytes(gpu, reserve_bytes=self._reserve_bytes) > 0
        ]

    def memory_bytes(self, gpu_uuid: str) -> int | None:
        """Memory of a GPU; None while NVML does not show it."""
        return next((gpu.memory_bytes for gpu in self._gpus.values() if gpu.uuid == gpu_uuid), None)

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        """Who holds memory on a GPU; raises NvmlError."""
        nvml = self._nvml  # `refresh` may close it meanwhile, which NVML then says
        if nvml is None:
            raise NvmlError("NVML is not open")
        return nvml.processes(gpu_uuid)

    def busy(self, gpu_uuid: str) -> bool:
        """Whether any process holds memory there; True where NVML cannot say."""
        try:
            return bool(self.processes(gpu_uuid))
        except NvmlError:
            return True
