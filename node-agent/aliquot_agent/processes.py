# SPDX-License-Identifier: Apache-2.0
"""What /proc tells about a process by its host pid: who and where it is, and what it was given."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot_api.names import CONTAINER_SHARES_DIR

_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-f])")
"""In a cgroup's path: `pod<uid>`, or `pod<uid with underscores>.slice` where systemd makes them."""
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
"""`<id>` (cgroupfs), `cri-containerd-<id>.scope`, `crio-<id>.scope`, `…:cri-containerd:<id>`."""
_LIBRARY: Final = "libaliquot.so"
_STAT_SIZE: Final = 4096
_STAT_FIELDS: Final = 20
_NAME_LIMIT: Final = 15
"""What the kernel keeps of a command's name."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The three that name a process's slot in a ledger."""

    pid: int
    """In its innermost pid namespace."""
    pidns_inode: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Place:
    """A container of a pod, by a cgroup's path; `container_id` is empty between pod and container."""

    pod_uid: str
    container_id: str


def identify(host_pid: int, *, proc: Path = Path("/proc")) -> Identity | None:
    """Who a process is; None when it is gone."""
    folder = proc / str(host_pid)
    try:
        status = _read(folder / "status")
        stat = _read(folder / "stat")
        inode = (folder / "ns" / "pid").stat().st_ino
    except OSError:
        return None
    ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    # The command name, in parentheses, may hold anything; field 22 counts from behind the last one.
    fields = stat.rpartition(")")[2].split()
    return Identity(pid=int(ids[-1]) if ids else host_pid, pidns_inode=inode, start_ticks=int(fields[19]))


def start_ticks(host_pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """Tells a process from the next one with its pid; None when it is gone or only waits to be reaped."""
    try:
        # Read each second for each process on a GPU: without the layers of pathlib and text files.
        fd = os.open(f"{proc}/{host_pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = os.read(fd, _STAT_SIZE).rpartition(b")")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    if len(fields) < _STAT_FIELDS or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def command(host_pid: int, *, proc: Path = Path("/proc")) -> str:
    """The name of a process's command, safe to print; `?` when it is gone."""
    try:
        name = _read(proc / str(host_pid) / "comm").rstrip("\n")
    except OSError:
        return "?"
    return "".join(each if each.isprintable() else "?" for each in name[:_NAME_LIMIT])


@dataclass(frozen=True, slots=True)
class Disk:
    """Where a directory really is: a file system, as mountinfo names it (`8:1`), and the path in it."""

    device: str
    folder: str


def disk_of(path: Path, *, proc: Path = Path("/proc")) -> Disk | None:
    """Where `path` is; None where that cannot be told."""
    best: tuple[int, Disk] | None = None
    try:
        mounts = _read(proc / "self" / "mountinfo")
    except OSError:
        return None
    for line in mounts.splitlines():
        fields = line.split()
        where = Path(_unescaped(fields[4]))
        if path.is_relative_to(where) and (best is None or len(where.parts) >= best[0]):
            folder = Path(_unescaped(fields[3])) / path.relative_to(where)
            best = (len(where.parts), Disk(device=fields[2], folder=str(folder)))
    return None if best is None else best[1]


def mounted_shares(
    host_pid: int, *, claims: Collection[Disk | None] = (), proc: Path = Path("/proc")
) -> frozenset[str]:
    """Share IDs whose quota is mounted where this process lives.

    With `claims`, where share directories really are, only our files count: a tenant who may mount can give
    files of its own any name. One place that cannot be told (None) lets all count.
    """
    try:
        mounts = _read(proc / str(host_pid) / "mountinfo")
    except OSError:
        return frozenset()
    prefix, suffix = f"{CONTAINER_SHARES_DIR}/", "/quota"
    shares = set()
    for line in mounts.splitlines():
        fields = line.split()
        target = fields[4]
        if not (target.startswith(prefix) and target.endswith(suffix)):
            continue
        share = target.removeprefix(prefix).removesuffix(suffix)
        if not claims or any(
            disk is None or (fields[2] == disk.device and _is_quota(fields[3], share, disk.folder))
            for disk in claims
        ):
            shares.add(share)
    return frozenset(shares)


def _is_quota(source: str, share: str, folder: str) -> bool:
    """Whether `source`, a path in the file system of the claims, is <folder>/<claim>/<share>/quota."""
    # The kernel puts `//deleted` behind the path of a share that was removed meanwhile.
    path = _unescaped(source.removesuffix("//deleted"))
    claim = path.removeprefix(f"{folder}/").removesuffix(f"/{share}/quota")
    return path == f"{folder}/{claim}/{share}/quota" and "/" not in claim


def places(host_pid: int, *, proc: Path = Path("/proc")) -> tuple[Place, ...]:
    """The pods and containers that a process runs in by its cgroup (v1 and v2), outermost first.

    A container in a container has its group below the outer one's, and so has a cluster in a pod.
    """
    try:
        text = _read(proc / str(host_pid) / "cgroup")
    except OSError:
        return ()
    found: tuple[Place, ...] = ()
    for line in text.splitlines():
        here = _places_in(line.split(":", 2)[-1])
        found = max(found, here, key=len)
    return found


def _places_in(path: str) -> tuple[Place, ...]:
    pods = list(_POD.finditer(path))
    found = []
    for index, pod in enumerate(pods):
        end = pods[index + 1].start() if index + 1 < len(pods) else len(path)
        container = _CONTAINER.search(path, pod.end(), end)
        uid = pod[1].replace("_", "-")
        found.append(Place(pod_uid=uid, container_id=container[1] if container else ""))
    return tuple(found)


def has_library(host_pid: int, *, disk: Disk | None = None, proc: Path = Path("/proc")) -> bool:
    """Whether our library is mapped into a process; True when it is gone, which tells nothing against it.

    With `disk`, a library on another file system is not ours.
    """
    device = None
    if disk is not None:
        major, _, minor = disk.device.partition(":")
        device = f"{int(major):02x}:{int(minor):02x}"
    try:
        maps = _read(proc / str(host_pid) / "maps")
    except OSError:
        return True
    for line in maps.splitlines():
        is_named = line.removesuffix(" (deleted)").endswith(_LIBRARY)
        if is_named and (device is None or line.split(maxsplit=4)[3] == device):
            return True
    return not maps  # the process is ending: its memory is gone already


def is_mounted_anywhere(shares: frozenset[str], *, proc: Path = Path("/proc")) -> bool:
    """Whether any process lives where one of these shares is mounted."""
    return any(
        entry.name.isdecimal() and mounted_shares(int(entry.name), proc=proc) & shares
        for entry in proc.iterdir()
    )


def _unescaped(text: str) -> str:
    """A path of mountinfo, which writes blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def _read(path: Path) -> str:
    """A process names itself and its mounts with any bytes."""
    return path.read_text(encoding="utf-8", errors="replace")
