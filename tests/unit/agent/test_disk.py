# SPDX-License-Identifier: Apache-2.0
"""The agent's claims on a disk of its own that is full, or read-only."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.kit import FakeGpus, FakeServer, Node, make_claim, make_gpu, result

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, timeout=30)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Node]:
    """A node on a file system with room for some shares."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk))
    try:
        # Locks stay elsewhere: a file that is open for writing keeps tmpfs from turning read-only.
        gpus = FakeGpus(gpus=[make_gpu(0)])
        yield Node(root=disk, gpus=gpus, server=FakeServer(), locks_dir=tmp_path / "locks")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=30)


def test_a_full_disk_fails_new_claims_and_leaves_the_others(small: Node) -> None:
    claims = small.claims()
    refs = [
        small.server.add(make_claim(result(small.gpus.gpus[0], memory="100Mi"), name=f"c{number}"))
        for number in range(12)
    ]
    prepared, failed = [], []
    for ref in refs:
        try:
            claims.prepare(ref)
        except OSError as error:
            failed.append((ref, str(error)))
        else:
            prepared.append(ref)
    assert prepared
    assert failed
    assert all("No space left on device" in problem for _, problem in failed)
    for ref in prepared:
        assert claims.prepare(ref)
    small.reconcile(claims)
    for ref in prepared[:2]:
        claims.unprepare(ref.uid)
    assert claims.prepare(failed[0][0])
    for ref in refs:
        claims.unprepare(ref.uid)
    assert small.leftovers() == []


def test_a_read_only_disk_is_said_and_survived(small: Node) -> None:
    claims = small.claims()
    old, new = (
        small.server.add(make_claim(result(small.gpus.gpus[0], memory="100Mi"), name=name))
        for name in ("old", "new")
    )
    claims.prepare(old)
    mount("-o", "remount,ro", str(small.root))
    try:
        with pytest.raises(OSError, match="Read-only file system"):
            claims.prepare(new)
        with pytest.raises(OSError, match="Read-only file system"):
            claims.unprepare(old.uid)
        small.reconcile(claims)
        assert [claim.uid for claim in claims.prepared()] == [old.uid]
    finally:
        mount("-o", "remount,rw", str(small.root))
    assert claims.prepare(new)
    for ref in (old, new):
        claims.unprepare(ref.uid)
    assert small.leftovers() == []
