# SPDX-License-Identifier: Apache-2.0
"""A tenant's program in Python, loading the CUDA driver with ctypes; does what fill.c does."""

import ctypes
import json
import signal
import sys
import time

PAGE_BYTES = 2 << 20
OUT_OF_MEMORY = 2
PATIENCE_S = 3.0

cuda = ctypes.CDLL("libcuda.so.1")


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def call(name: str, *arguments: object) -> None:
    result = getattr(cuda, name)(*arguments)
    if result != 0:
        say("error", what=name, result=result)
        sys.exit(1)


def free_bytes() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def allocate() -> tuple[int, ctypes.c_uint64]:
    pointer = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(PAGE_BYTES)), pointer


def fill() -> tuple[int, list[ctypes.c_uint64]]:
    """Takes pages until refused for PATIENCE_S; answers the last result and the pages."""
    pages = []
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        result, pointer = allocate()
        if result == 0:
            pages.append(pointer)
            give_up_s = time.monotonic() + PATIENCE_S
        elif result != OUT_OF_MEMORY or time.monotonic() > give_up_s:
            return result, pages
        else:
            time.sleep(0.05)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # by default a container's first process ignores it
    device, context = ctypes.c_int(), ctypes.c_void_p()
    name, total = ctypes.create_string_buffer(128), ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDeviceGetName", name, 128, device)
    call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    say("device", name=name.value.decode(), total_mib=total.value >> 20)

    result, pages = fill()
    say("full", allocated_mib=len(pages) * 2, result=result, free_bytes=free_bytes())
    kept = pages[len(pages) // 2 :]
    for pointer in pages[: len(pages) // 2]:
        call("cuMemFree_v2", pointer)
    result, pointer = allocate()
    if result != 0:
        say("error", what="cuMemAlloc after free", result=result)
        sys.exit(1)
    say("going on", allocated_mib=(len(kept) + 1) * 2, free_bytes=free_bytes())
    signal.pause()


if __name__ == "__main__":
    main()
