# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

from aliquot_agent import processes
from aliquot_agent.processes import Identity


def write(root: Path, *, status: str, stat: str, mounts: str = "") -> None:
    folder = root / "42"
    (folder / "ns").mkdir(parents=True)
    (folder / "ns" / "pid").write_text("")
    (folder / "status").write_text(status)
    (folder / "stat").write_text(stat)
    (folder / "mountinfo").write_text(mounts)


FIELDS = " ".join(str(number) for number in range(3, 53))


def test_this_process_is_known() -> None:
    identity = processes.identify(os.getpid())
    assert identity is not None
    assert identity.pidns_inode == os.stat("/proc/self/ns/pid").st_ino
    assert identity.start_ticks > 0


def test_the_innermost_pid_and_the_start_are_read(tmp_path: Path) -> None:
    write(tmp_path, status="Name:\tx\nNSpid:\t42\t7\t1\n", stat=f"42 (a) b ) {FIELDS}")
    inode = (tmp_path / "42" / "ns" / "pid").stat().st_ino
    assert processes.identify(42, proc=tmp_path) == Identity(pid=1, pidns_inode=inode, start_ticks=22)


def test_a_process_that_is_gone_is_nobody(tmp_path: Path) -> None:
    assert processes.identify(42, proc=tmp_path) is None
    assert processes.mounted_shares(42, proc=tmp_path) == frozenset()


def test_the_shares_of_its_container_are_read_from_its_mounts(tmp_path: Path) -> None:
    mounts = (
        "1 2 8:1 / / rw - ext4 x rw\n"
        "3 1 8:1 /v/quota /run/aliquot/shares/share-a/quota ro - ext4 x rw\n"
        "4 1 8:1 /v/ledger /run/aliquot/shares/share-a/ledger rw - ext4 x rw\n"
    )
    write(tmp_path, status="", stat=f"42 (x) {FIELDS}", mounts=mounts)
    assert processes.mounted_shares(42, proc=tmp_path) == {"share-a"}
