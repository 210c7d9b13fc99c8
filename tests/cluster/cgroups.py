# SPDX-License-Identifier: Apache-2.0
"""A cluster's own branch of every cgroup hierarchy, version 1 or 2: made, emptied and removed whole."""

import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .processes import kill_members
from .system import TestbedError, wait_until

_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


class Cgroups:
    """The branch `/testbed-NAME`.

    Below it, `daemons` holds what the test bed starts, and one group per node is that kubelet's root: without
    roots of their own kubelets kill each other's pods as orphans.
    """

    def __init__(self, *, cluster: str) -> None:
        self.root = f"/testbed-{cluster}"
        self._v1, self._v2 = _hierarchies()

    def node_root(self, node: str) -> str:
        """The cgroupRoot of a node's kubelet."""
        return f"{self.root}/{node}"

    def daemons(self, part: str) -> Path:
        """The group that daemons of a part of the cluster (a node, or "control") are started in."""
        return _below(self._tracking, f"{self.root}/daemons/{part}")

    def create(self, part: str) -> None:
        """Make the groups of a part of the cluster."""
        self.daemons(part).mkdir(parents=True, exist_ok=True)
        for hierarchy in self._v1:
            _create_v1(hierarchy, self.node_root(part))
        if self._v2 and not self._v1:
            _create_v2(self._v2, self.node_root(part))

    def kill(self, part: str | None = None) -> None:
        """Kill all that is left in a part of the cluster, or in the whole of it."""
        for branch in self._branches(part):
            folders = [folder for hierarchy in self._all for folder in _tree(_below(hierarchy, branch))]
            kill_members([folder / "cgroup.procs" for folder in folders], of=branch)

    def remove(self, part: str | None = None) -> None:
        """Remove the emptied groups of a part of the cluster, or of the whole of it."""
        for branch in self._branches(part):
            for hierarchy in self._all:
                top = _below(hierarchy, branch)
                removed = functools.partial(_removed, top)
                wait_until(removed, what=f"{top} to be empty", timeout_s=10, interval_s=0.01)

    def _branches(self, part: str | None) -> tuple[str, ...]:
        return (self.root,) if part is None else (f"{self.root}/daemons/{part}", self.node_root(part))

    def leftovers(self) -> list[Path]:
        """What exists of the branch."""
        return [path for hierarchy in self._all if (path := _below(hierarchy, self.root)).exists()]

    @property
    def _all(self) -> list[Path]:
        return [*self._v1, *([self._v2] if self._v2 else [])]

    @property
    def _tracking(self) -> Path:
        """The hierarchy in which daemons are kept together; the others leave them where they are."""
        for hierarchy in self._v1:
            if hierarchy.name in ("pids", "freezer"):
                return hierarchy
        return self._all[0]


def _hierarchies() -> tuple[list[Path], Path | None]:
    v1: list[Path] = []
    v2: Path | None = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ")
        mount, kind = Path(before.split()[4]), after.split()[0]
        if kind == "cgroup" and mount not in v1:
            v1.append(mount)
        elif kind == "cgroup2" and v2 is None:
            v2 = mount
    if not v1 and v2 is None:
        raise TestbedError("no cgroup file system is mounted; nodes need one below /sys/fs/cgroup")
    return v1, v2


def _create_v1(hierarchy: Path, group: str) -> None:
    folder = hierarchy
    for name in group.strip("/").split("/"):
        parent, folder = folder, folder / name
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, which then takes no process
            if (folder / file).exists():
                (folder / file).write_text((parent / file).read_text())


def _create_v2(hierarchy: Path, group: str) -> None:
    """Make a group whose children get every controller there is."""
    folder = hierarchy
    for name in group.strip("/").split("/"):
        _delegate(folder)
        folder /= name
        folder.mkdir(exist_ok=True)
    _delegate(folder)


def _delegate(folder: Path) -> None:
    there = (folder / "cgroup.controllers").read_text().split()
    try:
        for controller in _V2_CONTROLLERS:
            if controller in there:
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except (
        OSError
    ) as error:  # busy: a container's top group may not both hold processes and pass controllers on
        raise TestbedError(
            f"{folder} passes no controllers on to nodes: move its processes to a child"
        ) from error


def _below(hierarchy: Path, group: str) -> Path:
    return hierarchy / group.strip("/")


def _tree(top: Path) -> Iterator[Path]:
    for folder, _, _ in os.walk(top, topdown=False):
        yield Path(folder)


def _removed(top: Path) -> bool:
    for folder in _tree(top):
        with suppress(OSError):  # busy until the kernel has buried the last process
            folder.rmdir()
    return not top.exists()
