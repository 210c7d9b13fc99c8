# SPDX-License-Identifier: Apache-2.0
"""cuda-core: buffers, a stream, the device's memory resource; prints what it got as JSON."""

import json
from typing import Any

from cuda.core import Device

MIB = 1 << 20


def main() -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    held: list[Any] = []
    error = ""
    try:
        while len(held) < 64:
            held.append(device.allocate(64 * MIB, stream=stream))
    except Exception as refused:  # noqa: BLE001 - whatever the client raises, the test looks at it
        error = "OUT_OF_MEMORY" if "OUT_OF_MEMORY" in str(refused) else str(refused)
    count = len(held)
    for buffer in held:
        buffer.close(stream)
    stream.sync()
    again = device.allocate(64 * MIB, stream=stream)
    again.close(stream)
    stream.sync()
    print(json.dumps({"pool": [count * 64, error], "name": device.name}))


main()
