# SPDX-License-Identifier: Apache-2.0
"""A process that uses a share as the shim does: holds a slot by its lock, writes its use."""

import fcntl
import os
import struct
from pathlib import Path

from aliquot_agent import processes, region

_FLOCK = struct.Struct("@hhqqi4x")


class Tenant:
    """This very process, in slot `index` of the share at `path`."""

    def __init__(self, path: Path, *, index: int = 0) -> None:
        self._fd = os.open(path / "ledger", os.O_RDWR | os.O_CLOEXEC)
        self._index = index
        lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, region.SLOT_LOCK_BASE + index, 1, 0)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, lock)
        identity = processes.identify(os.getpid())
        assert identity is not None
        self._header("slots_used", index + 1)
        self.write(
            pid=identity.pid,
            pidns_inode=identity.pidns_inode,
            start_ticks=identity.start_ticks,
            overhead_bytes=region.OVERHEAD_UNKNOWN,
            generation=1,
        )

    def write(self, **words: int) -> None:
        """Sets words of the slot."""
        for name, value in words.items():
            offset = region.LEDGER_HEADER_SIZE + self._index * region.SLOT_SIZE
            offset += getattr(region.SlotLayout, name).offset
            os.pwrite(self._fd, value.to_bytes(8, "little"), offset)

    def deny(self, count: int) -> None:
        """Sets the share's refusals."""
        self._header("denied", count)

    def pace(self, **words: int) -> None:
        """Sets the share's words about launches."""
        for name, value in words.items():
            self._header(name, value)

    def truncate(self) -> None:
        """What a hostile tenant may do."""
        os.ftruncate(self._fd, 100)

    def write_over(self) -> None:
        """What a hostile tenant may do: a header that is none."""
        os.pwrite(self._fd, b"\xff" * 64, 0)

    def hide_slots(self) -> None:
        """What a hostile tenant may do: no slot is in use, says the header."""
        self._header("slots_used", 0)

    def claim_peak(self, bytes_: int) -> None:
        """Sets the share's peak."""
        self._header("peak_bytes", bytes_)

    def die(self) -> None:
        """Gives the lock back, as the kernel does at death."""
        os.close(self._fd)

    def _header(self, name: str, value: int) -> None:
        os.pwrite(self._fd, value.to_bytes(8, "little"), getattr(region.LedgerLayout, name).offset)
