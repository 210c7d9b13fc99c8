# SPDX-License-Identifier: Apache-2.0
"""Share directories for tests, made by the agent's own code, and raw access to their words."""

import mmap
import os
from pathlib import Path

from aliquot_agent import region, sharedir
from shim.tests.sandbox import MIB, Sandbox


def make(
    sandbox: Sandbox,
    *,
    gpu: str,
    limit: int,
    estimate: int = 0,
    name: str = "share-0",
    unlimited: bool = False,
    log: Path | str = "",
) -> Path:
    """A share of `gpu` in the sandbox; `estimate` is what a context counts until it is measured."""
    path = sandbox.shares / name
    flags = region.FLAG_UNLIMITED if unlimited else 0
    quota = region.Quota(
        gpu_uuid=gpu,
        memory_limit_bytes=limit,
        context_estimate_bytes=estimate,
        flags=flags,
        log_path=str(log),
    )
    sharedir.create(path, quota)
    return path


def usage(path: Path) -> region.Usage:
    """What the ledger says, as the agent reads it."""
    with sharedir.ShareFiles(path=path) as files:
        return region.usage(files.quota(), files.ledger())


def slots(path: Path) -> tuple[region.Slot, ...]:
    """The slots in use."""
    with sharedir.ShareFiles(path=path) as files:
        return files.ledger().slots


def resize(path: Path, limit: int) -> None:
    """A live resize: one store."""
    with sharedir.ShareFiles(path=path) as files:
        files.set_quota(memory_limit_bytes=limit)


def poke(path: Path, leaf: str, offset: int, data: bytes) -> None:
    """Writes over `leaf` in place."""
    fd = os.open(path / leaf, os.O_RDWR)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


def poke_mapped(path: Path, leaf: str, offset: int, value: int) -> None:
    """One 64-bit store through a mapping, as the agent does it."""
    with open(path / leaf, "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[offset : offset + 8] = value.to_bytes(8, "little")


__all__ = ["MIB", "make", "poke", "poke_mapped", "resize", "slots", "usage"]
