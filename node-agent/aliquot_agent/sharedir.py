# SPDX-License-Identifier: Apache-2.0
"""A share's directory on disk: made once, complete, then read and changed in place.

The quota is ours alone and mapped. The ledger belongs to the tenant, who may truncate it at any time:
it is read and written with pread and pwrite, never mapped, since a mapping would end us with SIGBUS.
"""

import fcntl
import mmap
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from aliquot_agent import processes, region
from aliquot_agent.checkpoint import Growth, PreparedShare
from aliquot_agent.files import Step, no_step
from aliquot_api.config import Sharing

QUOTA: Final = "quota"
LEDGER: Final = "ledger"
_LEDGER_MODE: Final = 0o666
_OTHERS_WRITE: Final = 0o022
_LEDGER_SLACK: Final = 1024**2
"""What a file system may take beside the content: metadata, rounding."""
_BLOCK: Final = 512
"""Unit of st_blocks."""

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, len, pid."""


_PACING: Final = region.Pacing._fields
"""Words of the quota that `compute` writes, and nobody else once a share is made."""
_STILL: Final = (
    slice(0, region.QuotaLayout.cores_millipercent.offset),
    slice(region.QuotaLayout.context_estimate_bytes.offset, region.QuotaLayout.epoch.offset),
    slice(region.QuotaLayout.reserved1.offset, region.QUOTA_SIZE),
)
"""Parts of a quota page that only a change of the quota changes, but for the words of pacing."""


def quota_of(share: PreparedShare, *, heartbeat_ns: int = 0) -> region.Quota:
    """The quota that a share must have, but for the words that move."""
    return region.Quota(
        gpu_uuid=share.gpu_uuid,
        memory_limit_bytes=share.limit,
        cores_millipercent=share.cores_percent * 1000 if share.sharing == Sharing.SHIM else 0,
        context_estimate_bytes=share.context_estimate_bytes,
        heartbeat_ns=heartbeat_ns,
    )


def create(path: Path, quota: region.Quota, *, mode: int = 0o755, step: Step = no_step) -> None:
    """Makes the share directory `path`, visible only once it is complete; FileExistsError if it is there.

    Nothing is synced to disk: only processes of this boot look at it, and claims.py makes it anew after one.
    """
    if (path / QUOTA).exists():
        raise FileExistsError(f"{path} is a share already")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fill(str(temporary), quota, mode=mode, step=step)
        temporary.rename(path)
    except (OSError, ValueError):
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    step("share: renamed")


def fill(path: str, quota: region.Quota, *, mode: int, step: Step = no_step) -> None:
    """Makes the directory `path` with its two files; nobody may know its name before it is complete."""
    page = region.encode_quota(quota)
    os.mkdir(path, mode)
    if mode & 0o077:
        os.chmod(path, mode)  # whatever the umask
    step("share: directory made")
    _write(f"{path}/{QUOTA}", page, size=region.QUOTA_SIZE, mode=0o644)
    step("share: quota written")
    header = region.encode_ledger_header(secrets.randbits(63))
    _write(f"{path}/{LEDGER}", header, size=region.LEDGER_SIZE, mode=_LEDGER_MODE)
    step("share: ledger written")


def remove(path: str, *, step: Step = no_step) -> None:
    """Takes the directory away at once (rename), then deletes it; silence when it is gone."""
    parent, _, name = path.rpartition("/")
    grave = f"{parent}/.{name}.{secrets.token_hex(4)}"
    with suppress(FileNotFoundError):
        os.rename(path, grave)
        step("share: renamed away")
        shutil.rmtree(grave)
        step("share: removed")


def discard(path: Path) -> None:
    """Deletes a temporary file or directory that a writer left behind where it died."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def busy(path: Path) -> bool:
    """Whether a live process holds a slot of the share at `path`."""
    with (
        # A spoilt quota must not keep its claim for ever; where no share is, no user is.
        suppress(region.DamagedRegion, FileNotFoundError),
        ShareFiles(path=path) as opened,
    ):
        return opened.busy()
    return False


def any_in_use(directory: Path) -> bool:
    """Whether a share in a claim's directory has a live process in a slot, or is mounted for one."""
    shares = [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
    return any(map(busy, shares)) or processes.is_mounted_anywhere(frozenset(path.name for path in shares))


def _write(path: str, data: bytes, *, size: int, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode & ~_OTHERS_WRITE)
    try:
        os.pwrite(fd, data, 0)
        if len(data) < size:
            os.posix_fallocate(fd, 0, size)  # no SIGBUS in a tenant when the disk is full later
        if mode & _OTHERS_WRITE:  # which the umask takes away
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


class ShareFiles:
    """An open share: its quota mapped, its ledger as a descriptor. Not for several threads at once."""

    def __init__(self, *, path: Path) -> None:
        self._quota_fd = os.open(path / QUOTA, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._ledger_fd = os.open(path / LEDGER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                size = os.fstat(self._quota_fd).st_size
                if size != region.QUOTA_SIZE:
                    raise region.DamagedRegion(f"quota has {size} bytes, want {region.QUOTA_SIZE}")
                self._map = mmap.mmap(self._quota_fd, region.QUOTA_SIZE)
                self._words = memoryview(self._map).cast("Q")
                self._right: tuple[region.Quota | None, bytes] = (None, b"")
                self._unused: tuple[bytes, bytes, region.Ledger | None] = (b"", b"", None)
                """Header and slots of a ledger that nobody uses, as read last, and what they mean."""
            except (OSError, ValueError):
                os.close(self._ledger_fd)
                raise
        except (OSError, ValueError):
            os.close(self._quota_fd)
            raise

    def close(self) -> None:
        """Closes both files."""
        self._words.release()
        self._map.close()
        os.close(self._ledger_fd)
        os.close(self._quota_fd)

    def removed(self) -> bool:
        """Whether these files have no name any more."""
        return os.fstat(self._quota_fd).st_nlink == 0

    def __enter__(self) -> "ShareFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def quota(self) -> region.Quota:
        """The quota as it stands; raises DamagedRegion."""
        return region.decode_quota(self._map[:])

    def quota_for(self, share: PreparedShare) -> region.Quota:
        """The quota that the share must have now: one that follows its use down keeps where it has got to."""
        wanted = quota_of(share)
        try:
            current = self.quota()
        except region.DamagedRegion:
            return wanted
        in_quota = share.growth in (Growth.HELD, Growth.LEAVING)
        highest = max(share.limit, share.taken_bytes if in_quota else share.memory_bytes)
        return replace(
            wanted,
            memory_limit_bytes=max(wanted.memory_limit_bytes, min(current.memory_limit_bytes, highest)),
            floor_bytes=current.floor_bytes,
        )

    def set_quota(
        self, *, memory_limit_bytes: int | None = None, cores_millipercent: int | None = None
    ) -> None:
        """Changes limits in place, each word by one store, then the epoch: the next call sees it."""
        epoch = self.quota().epoch  # raises for a damaged one, before anything is changed
        if memory_limit_bytes is not None:
            self._store("memory_limit_bytes", memory_limit_bytes)
        if cores_millipercent is not None:
            self._store("cores_millipercent", cores_millipercent)
        self._store("epoch", epoch + 1)

    def restore_quota(self, wanted: region.Quota) -> bool:
        """Puts back each word that is not as `wanted` and does not move; whether there was one."""
        last, page = self._right
        if (wanted is last or wanted == last) and all(self._map[part] == page[part] for part in _STILL):
            return False
        self._right = wanted, region.encode_quota(wanted)
        words = self._words
        with memoryview(self._right[1]) as right, right.cast("Q") as right_words:
            wrong = [
                index
                for index, word in enumerate(right_words)
                if words[index] != word and index not in _MOVING
            ]
            for index in wrong:
                words[index] = right_words[index]
        if wrong:
            words[_quota_word("epoch")] = (words[_quota_word("epoch")] + 1) % 2**64
        return bool(wrong)

    def pacing(self) -> region.Pacing:
        """The words of the quota that hold the share's cores."""
        return region.Pacing._make([self._words[index] for index in _PACING_WORDS])

    def set_pacing(self, before: region.Pacing, after: region.Pacing) -> None:
        """Stores those words that differ from `before`, each by one store; the next draw sees them."""
        for field, word, value in zip(_PACING, before, after, strict=True):
            if value != word:
                self._store(field, value)

    def pace(self) -> bytes:
        """What the ledger says about launches, for region.decode_pace; less where it was truncated."""
        return os.pread(self._ledger_fd, region.PACE_SIZE, region.PACE_OFFSET)

    def restore_ledger(self) -> bool:
        """Gives the ledger its size and mode back, whatever a tenant made of them; whether it had others."""
        status = os.fstat(self._ledger_fd)
        # Blocks behind the end (FALLOC_FL_KEEP_SIZE) fill the disk too; ftruncate gives them back.
        on_disk = status.st_blocks * _BLOCK
        wrong_size = status.st_size != region.LEDGER_SIZE or on_disk > region.LEDGER_SIZE + _LEDGER_SLACK
        wrong_mode = stat.S_IMODE(status.st_mode) != _LEDGER_MODE
        if wrong_mode:
            os.fchmod(self._ledger_fd, _LEDGER_MODE)
        if wrong_size:
            os.ftruncate(self._ledger_fd, region.LEDGER_SIZE)
            os.posix_fallocate(self._ledger_fd, 0, region.LEDGER_SIZE)
        return wrong_size or wrong_mode

    def beat(self, now_ns: int) -> None:
        """Writes the agent's heartbeat (CLOCK_MONOTONIC)."""
        self._store("heartbeat_ns", now_ns)

    def _store(self, field: str, value: int) -> None:
        self._words[_quota_word(field)] = value

    def ledger(self) -> region.Ledger:
        """The ledger as it stands; raises DamagedRegion for one that a tenant has spoilt."""
        header = os.pread(self._ledger_fd, region.LEDGER_HEADER_SIZE, 0)
        header_before, slots_before, unused = self._unused
        same = header == header_before
        length = len(slots_before) if same else region.slots_length(header)
        slots = os.pread(self._ledger_fd, length, region.LEDGER_HEADER_SIZE) if length else b""
        if same and slots == slots_before and unused is not None:
            return unused
        ledger = region.decode_ledger(header, slots)
        self._unused = (b"", b"", None) if ledger.slots else (header, slots, ledger)
        return ledger

    def heal_ledger(self, generation: int | None) -> None:
        """Writes the ledger's frozen header anew, with the generation that it had where that is known."""
        header = region.encode_ledger_header(secrets.randbits(63) if generation is None else generation)
        os.pwrite(self._ledger_fd, header[: region.LEDGER_FROZEN_SIZE], 0)

    def write_slots_used(self, count: int) -> None:
        """Puts back the number of slots that may be in use, which only grows."""
        os.pwrite(self._ledger_fd, count.to_bytes(8, "little"), region.LedgerLayout.slots_used.offset)

    def slot(self, index: int) -> region.Slot | None:
        """One slot, read again; None when it is free, or gone with the rest of a truncated ledger."""
        data = os.pread(self._ledger_fd, region.SLOT_SIZE, _slot_offset(index))
        return region.decode_slot(data, index=index) if len(data) == region.SLOT_SIZE else None

    def write_slot(self, slot: region.Slot, *, host_pid: int, overhead_bytes: int) -> None:
        """Writes the words of a slot that are the agent's: measured with `slot`'s contexts and code.

        Ordered so that a process reading in between counts too much, never too little.
        """
        measured = [
            ("measured_contexts", slot.measured_contexts, slot.contexts),
            ("measured_code_bytes", slot.measured_code_bytes, slot.code_bytes),
        ]
        falling = [(field, now) for field, before, now in measured if now < before]
        rising = [(field, now) for field, before, now in measured if now >= before]
        for field, value in (*falling, ("overhead_bytes", overhead_bytes), *rising):
            self._write_word(slot.index, field, value)
        self.write_host_pid(slot.index, host_pid)

    def write_host_pid(self, index: int, host_pid: int) -> None:
        """Tells a slot's owner its pid as NVML shows it."""
        self._write_word(index, "host_pid", host_pid)

    def _write_word(self, index: int, field: str, value: int) -> None:
        offset = _slot_offset(index) + getattr(region.SlotLayout, field).offset
        os.pwrite(self._ledger_fd, value.to_bytes(8, "little"), offset)

    def busy(self) -> bool:
        """Whether a live process holds a slot. A spoilt ledger counts as idle: it tells nothing."""
        try:
            slots = self.ledger().slots
        except region.DamagedRegion:
            return False
        for slot in slots:
            with self.orphaned(slot.index) as orphaned:
                if not orphaned:
                    return True
        return False

    @contextmanager
    def orphaned(self, index: int) -> Iterator[bool]:
        """True inside when no process holds the slot's lock; we hold it meanwhile."""
        flock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, region.SLOT_LOCK_BASE + index, 1, 0)
        try:
            fcntl.fcntl(self._ledger_fd, fcntl.F_OFD_SETLK, flock)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            unlock = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, region.SLOT_LOCK_BASE + index, 1, 0)
            fcntl.fcntl(self._ledger_fd, fcntl.F_OFD_SETLK, unlock)

    def clear_slot(self, slot: region.Slot) -> None:
        """Frees a slot whose owner is dead; only inside `orphaned`."""
        os.pwrite(self._ledger_fd, region.free_slot(slot.generation), _slot_offset(slot.index))


def _quota_word(field: str) -> int:
    offset: int = getattr(region.QuotaLayout, field).offset
    return offset // 8


def _slot_offset(index: int) -> int:
    return region.LEDGER_HEADER_SIZE + index * region.SLOT_SIZE


_PACING_WORDS: Final = tuple(map(_quota_word, _PACING))
_MOVING: Final = frozenset((_quota_word("epoch"), _quota_word("heartbeat_ns"), *_PACING_WORDS))
"""Words that move while the quota stays what it is."""
