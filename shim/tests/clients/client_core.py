# SPDX-License-Identifier: Apache-2.0
"""cuda-core: buffers, a stream, the device's memory resource, a graph; prints what it got as JSON."""

import json
from typing import Any

from cuda.core import Device

MIB = 1 << 20


def run_graph(device: Any, stream: Any) -> list[str]:
    """What a graph of one host function did; it keeps the function alive by a user object."""
    calls: list[str] = []
    builder = device.create_graph_builder()
    builder.begin_building()
    builder.callback(lambda: calls.append("called"))
    builder.end_building()
    graph = builder.complete()
    builder.close()
    graph.launch(stream)
    stream.sync()
    graph.close()
    return calls


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
    graph = run_graph(device, stream)
    print(json.dumps({"pool": [count * 64, error], "name": device.name, "graph": graph}))


main()
