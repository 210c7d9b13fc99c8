# SPDX-License-Identifier: Apache-2.0
"""What /proc tells about a process by its host pid: who it is in its own pid namespace, what it was given."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aliquot_api.names import CONTAINER_SHARES_DIR

_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-f])")
"""In a cgroup's path: `pod<uid>`, or `pod<uid with underscores>.slice` where systemd makes them."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The three that name a process's slot in a ledger."""

    pid: int
    """In its innermost pid namespace."""
    pidns_inode: int
    start_ticks: int


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


def mounted_shares(host_pid: int, *, proc: Path = Path("/proc")) -> frozenset[str]:
    """Share IDs whose quota is mounted where this process lives."""
    try:
        mounts = _read(proc / str(host_pid) / "mountinfo")
    except OSError:
        return frozenset()
    targets = (line.split()[4] for line in mounts.splitlines())
    prefix, suffix = f"{CONTAINER_SHARES_DIR}/", "/quota"
    return frozenset(
        target.removeprefix(prefix).removesuffix(suffix)
        for target in targets
        if target.startswith(prefix) and target.endswith(suffix)
    )


def pod_uid(host_pid: int, *, proc: Path = Path("/proc")) -> str | None:
    """UID of the pod that a process runs in, by its cgroup (v1 and v2); None when it is in none, or gone."""
    try:
        found = _POD.search(_read(proc / str(host_pid) / "cgroup"))
    except OSError:
        return None
    return found[1].replace("_", "-") if found else None


def is_mounted_anywhere(shares: frozenset[str], *, proc: Path = Path("/proc")) -> bool:
    """Whether any process lives where one of these shares is mounted."""
    return any(
        entry.name.isdecimal() and mounted_shares(int(entry.name), proc=proc) & shares
        for entry in proc.iterdir()
    )


def _read(path: Path) -> str:
    """A process names itself and its mounts with any bytes."""
    return path.read_text(encoding="utf-8", errors="replace")
