# SPDX-License-Identifier: Apache-2.0
"""Files that appear complete or not at all, with a hook between any two steps.

`step` is called with a name after each change on disk; tests end the process there.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

Step = Callable[[str], None]

TEMPORARY: Final = ".tmp"
"""Suffix of files that a crash may leave; whoever owns the folder removes them at its start."""


def no_step(_: str) -> None:
    """The hook of production."""


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, step: Step = no_step) -> None:
    """Puts `data` at `path` by temporary file and rename; `sync` follows where it must outlive power."""
    temporary = path.with_name(path.name + TEMPORARY)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        os.fchmod(fd, mode)  # whatever the umask
    finally:
        os.close(fd)
    step(f"{path.name}: temporary written")
    temporary.rename(path)
    step(f"{path.name}: renamed")


def remove(path: Path, *, step: Step = no_step) -> None:
    """Removes `path`; it may be gone already."""
    path.unlink(missing_ok=True)
    step(f"{path.name}: removed")


def sync(path: Path) -> None:
    """Brings a file and its name to disk."""
    for each in (path, path.parent):
        fd = os.open(each, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
