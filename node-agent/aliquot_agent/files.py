# SPDX-License-Identifier: Apache-2.0
"""Files that appear complete or not at all, with a hook between any two steps.

`step` is called with a name after each change on disk; tests end the process there. Modes are what the umask
leaves of them (`__main__` sets it).
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

Step = Callable[[str], None]
Signature = tuple[int, int, int]
"""Tells one content of a file from the next without reading it."""

TEMPORARY: Final = ".tmp"
"""Suffix of files that a crash may leave; whoever owns the folder removes them at its start."""


def no_step(_: str) -> None:
    """The hook of production."""


def signature(status: os.stat_result) -> Signature:
    """What a file's status tells of its content: inode, time, size."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def write_atomic(path: Path | str, data: bytes, *, mode: int = 0o644, step: Step = no_step) -> None:
    """Puts `data` at `path` by temporary file and rename; `sync` follows where it must outlive power."""
    path = os.fspath(path)
    write_temporary(path, data, mode=mode, step=step)
    put(path, step=step)


def write_temporary(path: str, data: bytes, *, mode: int, step: Step = no_step) -> str:
    """The first half of `write_atomic`; the temporary file that `put` makes appear at `path`."""
    temporary = path + TEMPORARY
    _write(temporary, data, flags=os.O_CREAT | os.O_TRUNC, mode=mode)
    step(f"{path}: temporary written")
    return temporary


def put(path: str, *, step: Step = no_step) -> None:
    """The second half."""
    os.rename(path + TEMPORARY, path)
    step(f"{path}: renamed")


def write_new(path: str, data: bytes, *, mode: int = 0o644) -> None:
    """Makes the file `path`, in a directory that is made complete before it gets its name."""
    _write(path, data, flags=os.O_CREAT | os.O_EXCL, mode=mode)


def write_over(path: str, data: bytes) -> None:
    """Makes `data` all that is in the file `path`, which is there and nobody reads.

    It is cut last: a file that was cut to nothing, ext4 brings to the disk when it is closed.
    """
    _write(path, data, flags=0, mode=0)


def _write(path: str, data: bytes, *, flags: int, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags, mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if not flags:
            os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def remove(path: Path | str, *, step: Step = no_step) -> None:
    """Removes `path`; it may be gone already."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    step(f"{path}: removed")


def sync(path: Path) -> None:
    """Brings a file and its name to disk."""
    for each in (path, path.parent):
        fd = os.open(each, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
