# SPDX-License-Identifier: Apache-2.0
"""Asks a driver what shim and simulator assume of it; prints one JSON object.

Run bare on a real and on the simulated driver, the differences correct the simulator; run under the shim,
the answers are to be those of the bare driver.
"""

import json
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p
from typing import Any, Final

from tests.gpu.driver import (
    LIMIT_MALLOC_HEAP,
    POOL_RELEASE_THRESHOLD,
    POOL_RESERVED_CURRENT,
    AccessDescription,
    CudaError,
    Driver,
    Nvml,
    on_device,
)

MIB: Final = 1 << 20
_STEP: Final = 2 * MIB


def free_async_of_linear(driver: Driver) -> int:
    """Answer of cuMemFreeAsync for memory of cuMemAlloc."""
    return driver.code("cuMemFreeAsync", driver.alloc(MIB), None)


def double_free(driver: Driver) -> int:
    """Answer of the second cuMemFree."""
    pointer = driver.alloc(MIB)
    driver.call("cuMemFree_v2", pointer)
    return driver.code("cuMemFree_v2", pointer)


def small_blocks(driver: Driver) -> dict[str, int]:
    """What 64 allocations of a size take of the free memory, each."""
    taken = {}
    for size in (1, 512, 65536, 512 << 10, MIB, MIB + 1, 3 * MIB // 2, _STEP, _STEP + 1):
        before = driver.free_bytes()
        pointers = [driver.alloc(size) for _ in range(64)]
        taken[str(size)] = (before - driver.free_bytes()) // 64
        for pointer in pointers:
            driver.call("cuMemFree_v2", pointer)
    return taken


def release_while_mapped(driver: Driver) -> dict[str, int]:
    """Free memory that each step of create, map, release, unmap takes (+) or gives back (-)."""
    handle, address = c_ulonglong(), c_ulonglong()
    properties = on_device()
    seen = [driver.free_bytes()]

    def did(name: str, *arguments: Any) -> None:
        driver.call(name, *arguments)
        seen.append(driver.free_bytes())

    did("cuMemCreate", byref(handle), c_size_t(64 * MIB), byref(properties), c_ulonglong(0))
    driver.call(
        "cuMemAddressReserve", byref(address), c_size_t(64 * MIB), c_size_t(0), c_ulonglong(0), c_ulonglong(0)
    )
    did("cuMemMap", address, c_size_t(64 * MIB), c_size_t(0), handle, c_ulonglong(0))
    access = AccessDescription(location_type=1, flags=3)
    driver.call("cuMemSetAccess", address, c_size_t(64 * MIB), byref(access), c_size_t(1))
    did("cuMemRelease", handle)
    did("cuMemUnmap", address, c_size_t(64 * MIB))
    driver.call("cuMemAddressFree", address, c_size_t(64 * MIB))
    steps = ("create", "map", "release", "unmap")
    return {step: seen[index] - seen[index + 1] for index, step in enumerate(steps)}


def pool_growth(driver: Driver) -> dict[str, int]:
    """RESERVED of the default pool after one byte, after its free with a threshold, and after a trim."""
    pool = c_void_p()
    driver.call("cuDeviceGetDefaultMemPool", byref(pool), 0)
    threshold = c_uint64(2**64 - 1)
    driver.call("cuMemPoolSetAttribute", pool, POOL_RELEASE_THRESHOLD, byref(threshold))

    def reserved() -> int:
        value = c_uint64()
        driver.call("cuMemPoolGetAttribute", pool, POOL_RESERVED_CURRENT, byref(value))
        return int(value.value)

    pointer = c_uint64()
    driver.call("cuMemAllocAsync", byref(pointer), c_size_t(1), None)
    driver.call("cuStreamSynchronize", None)
    answers = {"one byte": reserved()}
    driver.call("cuMemFreeAsync", pointer, None)
    driver.call("cuStreamSynchronize", None)
    answers["freed, threshold"] = reserved()
    driver.call("cuMemPoolTrimTo", pool, c_size_t(0))
    return answers | {"trimmed": reserved()}


def heap_limit(driver: Driver) -> dict[str, int]:
    """Memory that a heap of 256 MiB takes at once, and what the limit reads then."""
    before = driver.free_bytes()
    driver.call("cuCtxSetLimit", LIMIT_MALLOC_HEAP, c_size_t(256 * MIB))
    return {
        "taken": before - driver.free_bytes(),
        "limit": driver.number("cuCtxGetLimit", c_size_t, LIMIT_MALLOC_HEAP),
    }


def after_fork(driver: Driver) -> int:
    """Answer of cuMemGetInfo in a forked child."""
    child = os.fork()
    if child == 0:
        free, total = c_size_t(), c_size_t()
        os._exit(driver.code("cuMemGetInfo_v2", byref(free), byref(total)) & 0xFF)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def context_size(driver: Driver) -> dict[str, int | bool]:
    """What NVML shows of this process, which holds a context and nothing else; whether under its own pid."""
    shown = Nvml(gpu=driver.first_gpu()).processes()
    return {"own pid": os.getpid() in shown, "bytes": shown.get(os.getpid(), max(shown.values(), default=0))}


def idle_utilization(driver: Driver) -> int:
    """Answer of nvmlDeviceGetProcessUtilization while nothing has run."""
    return Nvml(gpu=driver.first_gpu()).utilization_code()


def versions(driver: Driver) -> int:
    """cuDriverGetVersion."""
    return driver.number("cuDriverGetVersion", c_int)


QUESTIONS: Final[tuple[Callable[[Driver], Any], ...]] = (
    context_size,
    idle_utilization,
    versions,
    free_async_of_linear,
    double_free,
    small_blocks,
    release_while_mapped,
    pool_growth,
    heap_limit,
    after_fork,
)
"""The first two while the process has done nothing yet."""


def main() -> None:
    """Asks all of them; one that fails says with what, and the next is asked."""
    driver = Driver()
    driver.context()
    answers: dict[str, Any] = {}
    for question in QUESTIONS:
        try:
            answers[question.__name__] = question(driver)
        except (CudaError, AttributeError) as error:
            answers[question.__name__] = f"failed: {error}"
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
