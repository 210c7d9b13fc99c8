# SPDX-License-Identifier: Apache-2.0
"""A mount namespace in which this process finds its shares where the library looks: /run/aliquot/shares.

Root makes one directly; anybody else first makes a user namespace of its own, with the same user and group.
The only module that calls the kernel's mount interface, which Python does not have (unshare(2), mount(2)).
"""

import contextlib
import ctypes
import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from aliquot_api.names import CONTAINER_PRELOAD, CONTAINER_SHARES_DIR

_NEW_MOUNTS: Final = 0x00020000  # CLONE_NEWNS
_NEW_USERS: Final = 0x10000000  # CLONE_NEWUSER
_READ_ONLY, _NO_SUID, _NO_DEV, _REMOUNT = 0x1, 0x2, 0x4, 0x20
_BIND, _MOVE, _RECURSIVE, _PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
_DETACH: Final = 0x2  # MNT_DETACH
_KEPT: Final = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
"""Flags that a user namespace must not take off a mount; the kernel's numbers are those of statvfs."""
_RUN: Final = Path("/run")


class NoNamespace(OSError):
    """The kernel refuses; the text says what would help."""


def enter(shares: Path, *, preload: Path | None = None) -> None:
    """Moves this process into a namespace with `shares` at its place, their quotas read-only.

    `preload` takes the place of /etc/ld.so.preload, which must exist. Only while there is one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _unshare(libc)
    _mount(libc, None, Path("/"), _PRIVATE | _RECURSIVE)
    target = Path(CONTAINER_SHARES_DIR)
    if not target.is_dir():
        _make_place(libc, target)
    _mount(libc, shares, target, _BIND)
    for quota in target.glob("*/quota"):
        kept = os.statvfs(quota).f_flag & _KEPT
        _mount(libc, quota, quota, _BIND)
        _mount(libc, None, quota, _BIND | _REMOUNT | _READ_ONLY | kept)
    if preload is not None:
        _mount(libc, preload, Path(CONTAINER_PRELOAD), _BIND)


def _unshare(libc: ctypes.CDLL) -> None:
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS | (0 if uid == 0 else _NEW_USERS)) != 0:
        number = ctypes.get_errno()
        help_text = "root may; others need unprivileged user namespaces (sysctl user.max_user_namespaces,"
        help_text += " kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        raise NoNamespace(number, f"no mount namespace: {os.strerror(number)}; {help_text}")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _make_place(libc: ctypes.CDLL, target: Path) -> None:
    """Makes the mount point; who may not write to /run gets a /run of the same content that has it."""
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    else:
        return
    place = Path(tempfile.mkdtemp(prefix="aliquot-run-"))
    try:
        _mount(libc, Path("tmpfs"), place, _NO_SUID | _NO_DEV, kind=b"tmpfs", data=b"mode=755,size=256k")
        _copy(libc, _RUN, place, target)
        (place / target.relative_to(_RUN)).mkdir(parents=True, exist_ok=True)
        _mount(libc, place, _RUN, _MOVE)
    finally:
        # Never by deleting a tree: where the move has failed, the whole of /run is in it.
        libc.umount2(os.fsencode(place), _DETACH)
        with contextlib.suppress(OSError):
            place.rmdir()


def _copy(libc: ctypes.CDLL, folder: Path, copy: Path, target: Path) -> None:
    """Binds everything in `folder` into `copy`; what lies on the way to `target` is a directory of ours."""
    for entry in folder.iterdir():
        place = copy / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
        elif target.is_relative_to(entry):
            place.mkdir()
            _copy(libc, entry, place, target)
        else:
            place.mkdir() if entry.is_dir() else place.touch()
            _mount(libc, entry, place, _BIND | _RECURSIVE)


def _mount(
    libc: ctypes.CDLL,
    source: Path | None,
    target: Path,
    flags: int,
    *,
    kind: bytes | None = None,
    data: bytes | None = None,
) -> None:
    origin = None if source is None else os.fsencode(source)
    if libc.mount(origin, os.fsencode(target), kind, ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {target}: {os.strerror(number)}")
