# SPDX-License-Identifier: Apache-2.0
"""A program that keeps a GPU busy with one kernel, whose name says how long it takes: `k_2ms`.

Prints "ready" after its first launch; `pause` and `go` on standard input; ends with it.
"""

import ctypes
import sys
import threading

IN_FLIGHT = 4


def main(name: str) -> None:
    """Launches until standard input ends."""
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p
    context, module, kernel = pointer(), pointer(), pointer()
    text = f".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry {name}()\n{{ ret; }}\n"

    def call(function: str, *arguments: object) -> None:
        code = getattr(cuda, function)(*arguments)
        if code:
            sys.exit(f"{function}: {code}")

    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), text.encode())
    call("cuModuleGetFunction", ctypes.byref(kernel), module, name.encode())
    going, over = threading.Event(), threading.Event()
    going.set()

    def obey() -> None:
        for order in sys.stdin:
            (going.clear if order == "pause\n" else going.set)()
        over.set()
        going.set()

    threading.Thread(target=obey, daemon=True).start()
    none = pointer()
    launched = 0
    while not over.is_set():
        call("cuLaunchKernel", kernel, 1000, 1, 1, 256, 1, 1, 0, none, none, none)
        launched += 1
        if launched == 1:
            print("ready", flush=True)
        if launched % IN_FLIGHT == 0:
            call("cuCtxSynchronize")
        going.wait()


if __name__ == "__main__":
    main(sys.argv[1])
