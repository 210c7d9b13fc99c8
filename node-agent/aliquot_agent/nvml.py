# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine as NVML shows them. The only module that talks to pynvml.

Each GPU stands on its own: one that answers with an error is reported, and hides no other.
"""

import ctypes
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

import pynvml

from aliquot_agent.errors import NvmlError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ARCHITECTURES: Final = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
}
_BRANDS: Final = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
}


_UNUSABLE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
"""What calls answer when the driver was loaded anew under an open library."""
_UNTOLD: Final = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
"""What calls answer that this driver or GPU never has an answer to."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU. Empty text and 0 stand for what NVML does not say."""

    index: int
    uuid: str
    """As NVML spells it: GPU-xxxxxxxx-…"""
    product_name: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int]
    driver_version: str
    cuda_driver_version: int
    """13000 for CUDA 13.0."""
    minor: int
    memory_bytes: int
    """What programs can have: the driver keeps some for itself."""
    pci_bus_id: str
    nvlink_clique: str
    fabric_cluster_uuid: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What one look at all GPUs gave: those that can be used, and why others cannot, by index."""

    gpus: tuple[Gpu, ...]
    problems: tuple["Problem", ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a GPU cannot be used."""

    index: int
    message: str
    mig: bool = False
    """It is partitioned."""
    lost: bool = False
    """It has fallen off the bus."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU; `used_bytes` is None where the driver does not say."""

    host_pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Vitals:
    """What tells a well GPU from a sick one; None where the driver does not say."""

    lost: bool = False
    uncorrected: int | None = None
    action_needed: bool | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a GPU is; None where the driver does not say."""

    used_bytes: int | None = None
    busy_percent: int | None = None
    memory_busy_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """How much of some time, which ended at `stamp_us` of the wall clock, a process had the GPU."""

    host_pid: int
    stamp_us: int
    percent: int


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported once."""

    gpu_uuid: str
    code: int


class Nvml:
    """An open NVML. Thread-safe, as NVML is."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML does not start: {error}") from error
        self._handles: dict[str, object] = {}  # looking one up by UUID can take seconds on a busy machine

    def close(self) -> None:
        """Gives NVML back."""
        _optional(pynvml.nvmlShutdown, None)

    def inventory(self) -> Inventory:
        """All GPUs, now; raises NvmlError where the library itself is of no more use."""
        try:
            count = pynvml.nvmlDeviceGetCount()
            driver = pynvml.nvmlSystemGetDriverVersion()
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML does not list its GPUs: {error}") from error
        gpus: list[Gpu] = []
        problems: list[Problem] = []
        unusable = 0
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                if _mig(handle):
                    problems.append(
                        Problem(index, "MIG mode is on; partitions are not supported yet", mig=True)
                    )
                    continue
                gpu = _describe(handle, index=index, driver_version=driver, cuda_driver_version=cuda)
                self._handles[gpu.uuid] = handle
                gpus.append(gpu)
            except pynvml.NVMLError as error:
                lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
                problems.append(Problem(index, str(error), lost=lost))
                unusable += error.value in _UNUSABLE
        if count and unusable == count:
            raise NvmlError(f"NVML answers for no GPU: {problems[0].message}")
        return Inventory(gpus=tuple(gpus), problems=tuple(problems))

    def processes(self, gpu_uuid: str) -> tuple[GpuProcess, ...]:
        """Who holds memory on a GPU that `inventory` has shown; compute and graphics."""
        handle = self._handles.get(gpu_uuid)
        if handle is None:
            raise NvmlError(f"NVML shows no GPU {gpu_uuid}")
        try:
            found = {entry.pid: entry for entry in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML does not list the processes of {gpu_uuid}: {error}") from error
        none: list[Any] = []
        for entry in _optional(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), none):
            found.setdefault(entry.pid, entry)
        return tuple(GpuProcess(host_pid=pid, used_bytes=entry.usedGpuMemory) for pid, entry in found.items())

    def vitals(self, gpu_uuid: str) -> Vitals:
        """How a GPU is."""
        handle = self._handles.get(gpu_uuid)
        if handle is None:
            return Vitals()
        try:
            # Any call does; this one is answered by the card itself.
            pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                return Vitals(lost=True)
        kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        none: int | None = None
        uncorrected = _optional(lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter)), none)
        return Vitals(uncorrected=uncorrected, action_needed=_action_needed(handle))

    def load(self, gpu_uuid: str) -> Load:
        """How busy a GPU is."""
        handle = self._handles.get(gpu_uuid)
        if handle is None:
            return Load()
        rates = _optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle), None)
        none: int | None = None
        return Load(
            used_bytes=_optional(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used), none),
            busy_percent=None if rates is None else int(rates.gpu),
            memory_busy_percent=None if rates is None else int(rates.memory),
        )

    def use(self, gpu_uuid: str, *, since_us: int) -> tuple[Use, ...] | None:
        """Who used a GPU after a time stamp of an earlier answer; nothing where the driver has nothing new.

        None where it does not tell of processes: old cards, MIG.
        """
        try:
            found = pynvml.nvmlDeviceGetProcessUtilization(self._handles.get(gpu_uuid), since_us)
        except pynvml.NVMLError as error:
            return None if error.value in _UNTOLD else ()
        # Drivers also give samples that are older than what was asked for.
        return tuple(
            Use(host_pid=each.pid, stamp_us=each.timeStamp, percent=min(each.smUtil, 100))
            for each in found
            if each.timeStamp > since_us
        )

    def xid_events(self, gpu_uuids: frozenset[str]) -> "XidEvents":
        """A subscription to the XIDs of these GPUs; raises NvmlError."""
        handles = {uuid: self._handles[uuid] for uuid in gpu_uuids if uuid in self._handles}
        return XidEvents(nvml=self, gpu_uuids=gpu_uuids, handles=handles)


class XidEvents:
    """One event set; for one thread."""

    def __init__(self, *, nvml: Nvml, gpu_uuids: frozenset[str], handles: Mapping[str, object]) -> None:
        self._of = nvml, gpu_uuids
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML makes no event set: {error}") from error
        self.incomplete = len(handles) < len(gpu_uuids)
        """Whether a GPU that cannot be listened to now may be later."""
        self._uuids: dict[int | None, str] = {}
        for uuid, handle in handles.items():
            try:
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
                self._uuids[_address(handle)] = uuid
            except pynvml.NVMLError as error:  # old cards never do
                self.incomplete |= error.value == pynvml.NVML_ERROR_GPU_IS_LOST
                logger.debug("GPU reports no XIDs", extra={"gpu": uuid, "error": str(error)})

    def is_of(self, nvml: Nvml, gpu_uuids: frozenset[str]) -> bool:
        """Whether it was made of this very NVML for these GPUs."""
        return self._of == (nvml, gpu_uuids)

    def wait(self, timeout_ms: int) -> Xid | None:
        """The next XID within the time; raises NvmlError where waiting is no use."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise NvmlError(f"NVML's events: {error}") from error
        if not event.eventType & pynvml.nvmlEventTypeXidCriticalError:
            return None
        uuid = self._uuids.get(_address(event.device))  # a card that is lost could not say it
        return None if uuid is None else Xid(gpu_uuid=uuid, code=int(event.eventData))

    def close(self) -> None:
        """Gives the set back."""
        _optional(lambda: pynvml.nvmlEventSetFree(self._set), None)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _action_needed(handle: object) -> bool | None:
    """Whether the driver asks for a reset or more (`nvidia-smi -q`: GPU Recovery Action)."""
    field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    found = _optional(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [field]), None)
    if not found or found[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return bool(found[0].value.uiVal)


def _describe(handle: object, *, index: int, driver_version: str, cuda_driver_version: int) -> Gpu:
    clique, cluster = _fabric(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        product_name=pynvml.nvmlDeviceGetName(handle),
        brand=_BRANDS.get(_optional(lambda: pynvml.nvmlDeviceGetBrand(handle), -1), ""),
        architecture=_ARCHITECTURES.get(_optional(lambda: pynvml.nvmlDeviceGetArchitecture(handle), -1), ""),
        compute_capability=(major, minor),
        driver_version=driver_version,
        cuda_driver_version=cuda_driver_version,
        minor=_optional(lambda: pynvml.nvmlDeviceGetMinorNumber(handle), index),
        memory_bytes=_memory_bytes(handle),
        pci_bus_id=_optional(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId, ""),
        nvlink_clique=clique,
        fabric_cluster_uuid=cluster,
    )


def _memory_bytes(handle: object) -> int:
    total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    # Only the second version of the call tells what is reserved; drivers before 510 lack it.
    reserved = _optional(
        lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).reserved), 0
    )
    return total - reserved


def _mig(handle: object) -> bool:
    return bool(_optional(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0], 0))


def _fabric(handle: object) -> tuple[str, str]:
    """Clique and cluster UUID of an NVLink fabric that is up, else empty."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    if _optional(lambda: pynvml.nvmlDeviceGetGpuFabricInfo(handle, pynvml.byref(info)), None) is None:
        return "", ""
    if info.state != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        return "", ""
    return str(info.cliqueId), str(UUID(bytes=bytes(info.clusterUuid)))


def _optional(call: Callable[[], T], otherwise: T) -> T:
    """What `call` gives, or `otherwise` where this driver or GPU cannot say."""
    try:
        return call()
    except pynvml.NVMLError:
        return otherwise
