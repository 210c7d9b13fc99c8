# SPDX-License-Identifier: Apache-2.0
"""torch_memory.py: what PyTorch sees of its share, fills it to the error, goes on; prints one JSON object."""

import json
import sys
from typing import Any

import torch

CHUNK = 64 << 20


def fill() -> tuple[int, str]:
    """Bytes that fit, and the error after them."""
    kept: list[Any] = []
    try:
        while True:
            kept.append(torch.empty(CHUNK, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        return len(kept) * CHUNK, type(error).__name__


def graph() -> float:
    """Replays a captured product; the sum of its result."""
    a = torch.ones(256, 256, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        a @ a
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        b = a @ a
    captured.replay()
    return float(b.sum())


def main() -> None:
    """All of it in one process, as a training program does."""
    free, total = torch.cuda.mem_get_info()
    answers: dict[str, Any] = {"total": total, "free": free}
    answers["fits"], answers["error"] = fill()
    torch.cuda.empty_cache()
    answers["graph"] = graph()
    loader = torch.utils.data.DataLoader(range(8), num_workers=2, collate_fn=sum)
    answers["loader"] = sum(loader)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
