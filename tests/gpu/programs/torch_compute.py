# SPDX-License-Identifier: Apache-2.0
"""torch_compute.py SECONDS product|graph: rounds per second, from the second one on, as JSON."""

import json
import sys
import time
from collections.abc import Callable

import torch

GRAPH_NODES = 50


def product() -> Callable[[], None]:
    """A bf16 product of some 100 µs on a large GPU."""
    a = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")

    def once() -> None:
        torch.mm(a, a)

    return once


def graph() -> Callable[[], None]:
    """A graph of short kernels."""
    a = torch.randn(1 << 22, device="cuda")
    torch.sin(a)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(GRAPH_NODES):
            torch.sin_(a)

    def once() -> None:
        captured.replay()

    return once


def main() -> None:
    """Runs rounds of ten with a synchronisation after each."""
    seconds = float(sys.argv[1])
    once = {"product": product, "graph": graph}[sys.argv[2]]()
    begin = time.monotonic()
    done, counted_from = 0, begin
    while (now := time.monotonic()) < begin + 1 + seconds:
        if now < begin + 1:
            done, counted_from = 0, now
        for _ in range(10):
            once()
        torch.cuda.synchronize()
        done += 10
    json.dump({"per_s": done / (time.monotonic() - counted_from)}, sys.stdout)


if __name__ == "__main__":
    main()
