# SPDX-License-Identifier: Apache-2.0
"""numba-cuda: memory of the device, arrays on it; prints what it got as JSON."""

import json
from typing import Any

from numba import cuda

MIB = 1 << 20


def main() -> None:
    context: Any = cuda.current_context()  # type: ignore[no-untyped-call] # numba has no types
    free, total = context.get_memory_info()
    held: list[Any] = []
    error = ""
    try:
        while len(held) < 64:
            held.append(context.memalloc(64 * MIB))
    except Exception as refused:  # noqa: BLE001 - whatever the client raises, the test looks at it
        error = "OUT_OF_MEMORY" if "OUT_OF_MEMORY" in str(refused) else str(refused)
    count = len(held)
    held.clear()
    context.deallocations.clear()
    print(json.dumps({"total": total // MIB, "free": free // MIB, "linear": [count * 64, error]}))


main()
