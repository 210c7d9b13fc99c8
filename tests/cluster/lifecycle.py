# SPDX-License-Identifier: Apache-2.0
"""Claim a place on the machine for a cluster, and clear it away to the last trace, whoever made it."""

import os
import shutil
from functools import partial
from pathlib import Path

from .binaries import Binaries
from .cgroups import Cgroups
from .network import disconnect_host, free_addresses
from .spec import Addresses, Layout, Spec, load, state_root, store
from .system import TestbedError, is_unmounted, locked, try_lock, wait_until


def clusters() -> list[str]:
    """The names of all clusters of this machine, also of unfinished ones."""
    root = state_root()
    return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def claim(spec: Spec, binaries: Binaries) -> tuple[Layout, Addresses, int]:
    """Reserve name and addresses. Until it is `ready`, the cluster lives no longer than the returned lock."""
    layout = Layout.of(spec.name)
    with locked(state_root()):
        sweep()
        if layout.root.exists():
            state = "is up already" if layout.ready.exists() else "belongs to another running process"
            raise TestbedError(f"cluster {spec.name!r} {state}; choose another name, or take it down")
        addresses = free_addresses(_indexes())
        layout.root.mkdir()
        lock = try_lock(layout.owner)
        assert lock is not None, "nobody else can have it while we hold the root's lock"
        store(layout, spec, addresses, binaries)
    return layout, addresses, lock


def release(layout: Layout) -> None:
    """Clear away a cluster."""
    with locked(state_root()):
        _clear(layout)


def sweep() -> None:
    """Clear away what killed runs, or the machine's last life, left.

    A `ready` cluster stays as long as it has cgroups, which end with the machine's life; any other one stays
    as long as its owner lives.
    """
    for name in clusters():
        layout = Layout.of(name)
        if layout.ready.exists() and Cgroups(cluster=name).leftovers():
            continue
        lock = try_lock(layout.owner)
        if lock is not None:
            try:
                _clear(layout)
            finally:
                os.close(lock)


def _clear(layout: Layout) -> None:
    layout.ready.unlink(missing_ok=True)  # so that the next one goes on should we die now
    cgroups = Cgroups(cluster=layout.root.name)
    cgroups.kill()
    cgroups.remove()
    if layout.spec.exists():
        _, addresses, _ = load(layout)
        disconnect_host(addresses)
    for disk in layout.root.glob("nodes/*/disk.img"):
        wait_until(partial(is_unmounted, disk), what=f"{disk} to be unmounted", timeout_s=10)
    _refuse_mounts(layout.root)
    if layout.root.exists():
        shutil.rmtree(layout.root)


def _refuse_mounts(folder: Path) -> None:
    """Nodes mount in namespaces of their own; anything else below is somebody's data, not to be deleted."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [mount for mount in mounts if mount.startswith(f"{folder}/")]
    if below:
        raise TestbedError(f"unmount {', '.join(below)} first: somebody mounted it there")


def _indexes() -> set[int]:
    layouts = [Layout.of(name) for name in clusters()]
    return {load(layout)[1].index for layout in layouts if layout.spec.exists()}
