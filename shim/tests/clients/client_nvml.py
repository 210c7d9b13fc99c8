# SPDX-License-Identifier: Apache-2.0
"""nvidia-ml-py: the GPU's size and name; prints what it got as JSON."""

import json

import pynvml

MIB = 1 << 20


def main() -> None:
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
    second = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    print(
        json.dumps(
            {
                "total": memory.total // MIB,
                "same": memory.total == second.total,
                "name": pynvml.nvmlDeviceGetName(gpu),
            }
        )
    )


main()
