# SPDX-License-Identifier: Apache-2.0
"""Locks by name that hold between threads and between agents: in a rolling update two run on one node.

Between processes a name is one byte far inside a lock file (open file description locks): nothing is left
behind for names that are gone, nobody polls, and the kernel releases what a killed agent held.
"""

import fcntl
import hashlib
import os
import struct
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Final

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, len, pid."""
_FILE: Final = "lock"
_PRESENT: Final = 2**62
"""A byte behind all names: each agent holds a shared lock on it."""
_LEADER: Final = "leader.lock"


class Lock:
    """One name's lock; as threading.Lock, which it holds as well."""

    def __init__(self, *, fd: int, name: str) -> None:
        self._fd = fd
        # Two names on one byte would only wait for each other; 55 bits make it a matter of theory.
        self._offset = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") >> 1
        self._threads = threading.Lock()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Takes it; False when somebody else has it and we shall not wait."""
        if not self._threads.acquire(blocking=blocking):
            return False
        try:
            self._set(fcntl.F_WRLCK, wait=blocking)
        except BlockingIOError:
            self._threads.release()
            return False
        except OSError:
            self._threads.release()
            raise
        return True

    def release(self) -> None:
        """Gives it back."""
        self._set(fcntl.F_UNLCK, wait=False)
        self._threads.release()

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _set(self, kind: int, *, wait: bool) -> None:
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(self._fd, command, _FLOCK.pack(kind, os.SEEK_SET, self._offset, 1, 0))


class Locks:
    """All locks of a node, in a directory that both agents share."""

    def __init__(self, *, directory: Path) -> None:
        self._path = directory / _FILE
        self._fd = -1
        self._mutex = threading.Lock()
        # Weak: a lock that nobody holds or waits for is forgotten.
        self._locks: weakref.WeakValueDictionary[str, Lock] = weakref.WeakValueDictionary()

    def of(self, name: str) -> Lock:
        """The lock of `name`; the same for all who ask while anyone has it."""
        with self._mutex:
            lock = self._locks.get(name)
            if lock is None:
                lock = self._locks[name] = Lock(fd=self._open(), name=name)
            return lock

    def alone(self) -> bool:
        """Whether no other agent is present."""
        with self._mutex:
            fd = self._open()
        # Not under the mutex: every Prepare asks, and whoever waits for a system call waits for the GIL, too.
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _PRESENT, 1, 0)
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
        kind: int = _FLOCK.unpack(answer)[0]
        return kind == fcntl.F_UNLCK

    def _open(self) -> int:
        """The file; who opens it is present until it ends."""
        if self._fd < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, 0o600)
            present = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, _PRESENT, 1, 0)
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, present)
        return self._fd


class Leadership:
    """Which of two agents publishes, watches, reports and clears up: the first, until it ends."""

    def __init__(self, *, directory: Path) -> None:
        self._path = directory / _LEADER
        self._fd = -1

    def take(self, *, wait: bool) -> bool:
        """Becomes the one; waits for as long as it takes, or answers False. Held until the process ends."""
        if self._fd < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def give_up(self) -> None:
        """Lets the other one be it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
