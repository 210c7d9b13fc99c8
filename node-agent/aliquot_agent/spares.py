# SPDX-License-Identifier: Apache-2.0
"""Files that wait to be written over: a Prepare makes none on the disk.

ext4 passes over inodes that were deleted in the last minutes one by one before it gives out a new one
(fs/ext4/ialloc.c, recently_deleted). Where pods come and go a new file takes up to a millisecond of processor
time, and of 64 pods that start together the last one waits for 64 of them.
"""

import itertools
import os
import secrets
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST: Final = 64


class Spares:
    """A directory of such files, on the file system of those that they become. Thread-safe.

    None is ever missed: an agent that starts removes them all, also those of one that still runs.
    """

    def __init__(self, *, directory: Path) -> None:
        self._directory = directory
        self._prefix = f"{directory}/{secrets.token_hex(4)}"
        self._numbers = itertools.count()
        self._ready: deque[str] = deque()
        """The one that has waited longest first: its inode was no other file's of late."""

    def start(self) -> None:
        """Makes the directory, empty. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._directory.iterdir():
            path.unlink(missing_ok=True)

    def fill(self) -> None:
        """Makes as many as may wait, where the disk allows it. One thread at a time."""
        with suppress(OSError):
            while len(self._ready) < MOST:
                path = self._name()
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                self._ready.append(path)

    def take(self, path: str) -> bool:
        """Puts one at `path`, with whatever is in it; false if there is none, or it cannot be had."""
        with suppress(IndexError, OSError):
            os.rename(self._ready.popleft(), path)
            return True
        return False

    def give(self, path: str) -> bool:
        """Takes a file away, to be written over; false if enough wait, or it cannot be had."""
        if len(self._ready) < MOST:
            with suppress(OSError):
                spare = self._name()
                os.rename(path, spare)
                self._ready.append(spare)
                return True
        return False

    def _name(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"
