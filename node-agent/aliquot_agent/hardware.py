# SPDX-License-Identifier: Apache-2.0
"""This node's GPUs as the rest of the agent sees them: NVML's last answer, and which are ours to give."""

import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from aliquot_agent import devices, held
from aliquot_agent.devices import Attribute, Device, Taint
from aliquot_agent.errors import NvmlError
from aliquot_agent.nodepolicy import GpuPolicy, NodePolicy
from aliquot_agent.nvml import Gpu, GpuProcess, Inventory, Nvml, Problem
from aliquot_agent.order import Arranger
from aliquot_agent.readiness import Readiness
from aliquot_api.modes import Mode

logger = logging.getLogger(__name__)

READINESS: Final = "nvml"
_NONE: Final[Mapping[str, int]] = {}
_NO_TAINTS: Final[Mapping[str, Taint]] = {}
_NO_MODES: Final[Mapping[str, Mode]] = {}


class Cause(enum.StrEnum):
    """Why a GPU is left out; also a metric's label."""

    MIG = "mig"
    ERROR = "error"
    """NVML does not describe it."""
    OWNED = "owned"
    """Somebody else on the node hands it out."""
    CONFIGURED = "configured"
    FULL = "full"
    """Nothing of its memory is free to give."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU that is not published."""

    index: int
    uuid: str
    """Empty where NVML does not say."""
    cause: Cause
    message: str


class Hardware:
    """GPUs by device name. Thread-safe; `refresh` by one thread at a time."""

    def __init__(
        self,
        *,
        open_nvml: Callable[[], Nvml],
        readiness: Readiness,
        policy: Callable[[], NodePolicy],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_nvml = open_nvml
        self._readiness = readiness
        self._policy = policy
        self._arranger = Arranger(monotonic_s=monotonic_s)
        self._nvml: Nvml | None = None
        self._gpus: Mapping[str, Gpu] = {}
        self._problems: tuple[Problem, ...] = ()
        self._owners: Mapping[str, str] = {}
        self._full: frozenset[str] = frozenset()
        self._published: Mapping[str, Device] = {}

    def refresh(self) -> bool:
        """Asks NVML again, opening it anew where that failed before; whether the GPUs are others now.

        A GPU that has fallen off the bus stays in the list as it was known: its claims still are there.
        """
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
        lost = {problem.index for problem in inventory.problems if problem.lost}
        gpus = {device: gpu for device, gpu in self._gpus.items() if gpu.index in lost}
        gpus |= {devices.device_name(gpu.uuid): gpu for gpu in inventory.gpus}
        known = {gpu.index for gpu in gpus.values()}
        self._problems = tuple(each for each in inventory.problems if each.index not in known)
        changed, self._gpus = gpus != self._gpus, gpus
        return changed

    def close(self) -> None:
        """Gives NVML back."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.close()

    @property
    def nvml(self) -> Nvml | None:
        """The open NVML; None while it does not answer."""
        return self._nvml

    def own(self, owners: Mapping[str, str]) -> bool:
        """Takes note of who else hands out which GPU, by UUID; whether that is news."""
        changed, self._owners = dict(owners) != self._owners, dict(owners)
        return changed

    def by_device(self) -> Mapping[str, Gpu]:
        """GPUs that NVML shows, by device name; not all of them are published."""
        return self._gpus

    def policy_of(self, gpu: Gpu) -> GpuPolicy:
        """What is decided about a GPU."""
        return self._policy().gpu(uuid=gpu.uuid, index=gpu.index)

    def not_ours(self, gpu: Gpu) -> LeftOut | None:
        """Why a GPU that works must not be given to new claims; None when it may."""
        owner = self._owners.get(gpu.uuid)
        if owner is not None:
            return LeftOut(
                gpu.index, gpu.uuid, Cause.OWNED, f"{owner}; one owner per GPU: take it from one of both"
            )
        if not self.policy_of(gpu).publish:
            return LeftOut(gpu.index, gpu.uuid, Cause.CONFIGURED, "node configuration says publish: false")
        return None

    def left_out(self) -> tuple[LeftOut, ...]:
        """GPUs that are not published, and why, in the order of NVML."""
        found = [
            LeftOut(each.index, "", Cause.MIG if each.mig else Cause.ERROR, each.message)
            for each in self._problems
        ]
        for device, gpu in self._gpus.items():
            reason = self.not_ours(gpu)
            if reason is None and device in self._full:
                reason = LeftOut(
                    gpu.index, gpu.uuid, Cause.FULL, "processes outside any share hold its memory"
                )
            if reason is not None:
                found.append(reason)
        return tuple(sorted(found, key=lambda each: each.index))

    def published(
        self,
        *,
        most_bytes: Mapping[str, int] = _NONE,
        withheld_bytes: Mapping[str, int] = _NONE,
        taken_bytes: Mapping[str, int] = _NONE,
        taints: Mapping[str, Taint] = _NO_TAINTS,
        ways: Mapping[str, Mode] = _NO_MODES,
    ) -> list[Device]:
        """The devices of our slice, in the order that node configuration asks for. All maps by device name.

        `most_bytes` caps devices that are held whole: what they show must not grow into room for others.
        `withheld_bytes` is not there to be given, `taken_bytes` is what shares hold (it decides order only),
        `ways` how the shares on a device were prepared.
        """
        built: dict[str, Device] = {}
        taken: dict[str, float] = {}
        full = set()
        for device, gpu in sorted(self._gpus.items(), key=lambda item: item[1].index):
            if self.not_ours(gpu) is not None:
                continue
            policy = self.policy_of(gpu)
            policy = replace(policy, sharing=held.of_gpu(policy, ways.get(device)))
            memory_bytes = devices.offered_bytes(
                gpu,
                policy=policy,
                most_bytes=most_bytes.get(device),
                withheld_bytes=withheld_bytes.get(device, 0),
            )
            if memory_bytes < devices.LEAST_BYTES:
                full.add(device)
                continue
            built[device] = self._build(gpu, memory_bytes=memory_bytes, taint=taints.get(device))
            taken[device] = taken_bytes.get(device, 0) / memory_bytes
        self._full = frozenset(full)
        self._published = built
        order = self._arranger.arrange(tuple(built), taken=taken, order=self._policy().order)
        return [built[device] for device in order]

    def attributes(self, device: str) -> Mapping[str, Attribute]:
        """What the slice says of a device: as it was published last. Nothing of one that is not there."""
        gpu = self._gpus.get(device)
        if gpu is None:
            return {}
        # `published` is asked by the agent that leads only; kubelet may ask the other one.
        published = self._published.get(device) or self._build(gpu, memory_bytes=devices.LEAST_BYTES)
        return published["attributes"]

    def _build(self, gpu: Gpu, *, memory_bytes: int, taint: Taint | None = None) -> Device:
        return devices.build(
            gpu,
            policy=self.policy_of(gpu),
            place=devices.pci_place(gpu.pci_bus_id),
            memory_bytes=memory_bytes,
            taint=taint,
        )

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
