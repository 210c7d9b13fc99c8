# SPDX-License-Identifier: Apache-2.0
"""cuda-bindings: allocates of each family, then as much as there is; prints what it got as JSON."""

import json
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver

MIB = 1 << 20


def ok(answer: Any) -> Any:
    """The value of a call that must succeed."""
    assert answer[0] == 0, answer
    return answer[1] if len(answer) == 2 else answer[1:]


def fill(take: Callable[[int], Any], give: Callable[[Any], Any]) -> list[int]:
    """How much of 64 MiB at a time there is, and the code that ends it."""
    held: list[Any] = []
    while True:
        answer = take(64 * MIB)
        if answer[0] != 0:
            break
        held.append(answer[1])
        if len(held) == 64:
            break
    for each in held:
        ok(give(each))
    return [len(held) * 64, int(answer[0])]


def main() -> None:
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(context))
    stream = ok(driver.cuStreamCreate(0))
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = 0
    free, total = ok(driver.cuMemGetInfo())
    answers = {
        "total": total // MIB,
        "free": free // MIB,
        "linear": fill(driver.cuMemAlloc, driver.cuMemFree),
        "virtual": fill(lambda size: driver.cuMemCreate(size, prop, 0), driver.cuMemRelease),
        "pool": fill(
            lambda size: driver.cuMemAllocAsync(size, stream), lambda at: driver.cuMemFreeAsync(at, stream)
        ),
        "managed": fill(lambda size: driver.cuMemAllocManaged(size, 1), driver.cuMemFree),
    }
    ok(driver.cuStreamSynchronize(stream))
    answers["free at the end"] = ok(driver.cuMemGetInfo())[0] // MIB
    print(json.dumps(answers))


main()
