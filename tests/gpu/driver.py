# SPDX-License-Identifier: Apache-2.0
"""The driver and NVML through ctypes, as a program without any framework calls them."""

import ctypes
import uuid
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

POOL_RELEASE_THRESHOLD: Final = 4
POOL_RESERVED_CURRENT: Final = 5
LIMIT_MALLOC_HEAP: Final = 2
_UUID_BYTES: Final = 16


class CudaError(Exception):
    """A call's answer that is not 0."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {code}")
        self.code = code


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory on device 0."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location_type", c_int), ("location_id", c_int), ("flags", c_int))


def on_device() -> AllocationProperties:
    """Properties of plain memory on device 0."""
    return AllocationProperties(type=1, location_type=1)


class Driver:
    """libcuda. Names are called as they are, `call` raises, `code` answers."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def code(self, name: str, *arguments: Any) -> int:
        """Answer of the call: 0 is success."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Calls; CudaError if the answer is not 0."""
        code = self.code(name, *arguments)
        if code:
            raise CudaError(name, code)

    def address(self, name: str) -> int:
        """Where the symbol is exported; 0: nowhere."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return 0
        return ctypes.cast(function, c_void_p).value or 0

    def first_gpu(self) -> str:
        """UUID of device 0, as NVML writes it."""
        self.call("cuInit", 0)
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        self.call("cuDeviceGetUuid_v2", byref(raw), 0)
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def context(self) -> None:
        """Retains the primary context of device 0 and makes it current."""
        self.call("cuInit", 0)
        handle = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(handle), 0)
        self.call("cuCtxSetCurrent", handle)

    def number(self, name: str, kind: Any, *arguments: Any) -> int:
        """Calls NAME(&number, ARGUMENTS...)."""
        value = kind()
        self.call(name, byref(value), *arguments)
        return int(value.value or 0)

    def alloc(self, size_bytes: int) -> c_uint64:
        """Linear memory."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
        return pointer

    def free_bytes(self) -> int:
        """cuMemGetInfo's free memory."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return int(free.value)


class NvmlProcess(ctypes.Structure):
    """nvmlProcessInfo_t of the third ABI."""

    _fields_ = (("pid", c_uint), ("used_bytes", ctypes.c_ulonglong), ("instance", c_uint * 2))


class Nvml:
    """libnvidia-ml's view of device 0."""

    def __init__(self, *, gpu: str) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self._device = c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", gpu.encode(), byref(self._device))

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            raise CudaError(name, code)

    def processes(self) -> dict[int, int]:
        """Bytes by pid, of processes that compute."""
        count = c_uint(256)
        found = (NvmlProcess * 256)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._device, byref(count), found)
        return {each.pid: int(each.used_bytes) for each in found[: count.value]}

    def utilization_code(self) -> int:
        """Answer of nvmlDeviceGetProcessUtilization, asked for everything since the start."""
        count = c_uint(0)
        call = self._library.nvmlDeviceGetProcessUtilization
        return int(call(self._device, None, byref(count), ctypes.c_ulonglong(0)))
