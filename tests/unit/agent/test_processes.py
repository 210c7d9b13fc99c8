# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

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


UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
FLAT_UID = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
UNDERSCORED = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/0123abcd\n", UID, id="v2, cgroupfs"),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/"
            "cri-containerd-0123abcd.scope\n",
            UID,
            id="v2, systemd",
        ),
        pytest.param(
            f"12:pids:/kubepods/pod{UID}/0123\n1:name=systemd:/kubepods/pod{UID}/0123\n", UID, id="v1"
        ),
        pytest.param(f"0::/../../kubepods-pod{UNDERSCORED}.slice/x.scope\n", UID, id="seen from a container"),
        pytest.param(f"0::/kubepods/pod{FLAT_UID}/0123\n", FLAT_UID, id="static pod"),
        pytest.param("0::/system.slice/sshd.service\n", None, id="no pod"),
        pytest.param("0::/user.slice/podman-1234.scope\n", None, id="not a UID"),
    ],
)
def test_the_pod_is_read_from_the_cgroup(tmp_path: Path, cgroup: str, uid: str | None) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text(cgroup)
    assert processes.pod_uid(42, proc=tmp_path) == uid


def test_a_process_that_is_gone_is_in_no_pod(tmp_path: Path) -> None:
    assert processes.pod_uid(42, proc=tmp_path) is None


def test_names_of_any_bytes_are_read(tmp_path: Path) -> None:
    write(tmp_path, status="", stat="")
    folder = tmp_path / "42"
    (folder / "stat").write_bytes(b"42 (\xff) " + FIELDS.encode())
    (folder / "status").write_bytes(b"Name:\t\xff\nNSpid:\t42\t7\n")
    mount = b"/run/aliquot/shares/share-a/quota"
    (folder / "mountinfo").write_bytes(b"1 2 8:1 / /\xff rw\n3 1 8:1 /q " + mount + b" ro\n")
    (folder / "cgroup").write_bytes(b"0::/\xff/pod" + UID.encode() + b"/0123\n")
    identity = processes.identify(42, proc=tmp_path)
    assert identity is not None
    assert (identity.pid, identity.start_ticks) == (7, 22)
    assert processes.mounted_shares(42, proc=tmp_path) == {"share-a"}
    assert processes.pod_uid(42, proc=tmp_path) == UID


def test_a_share_is_in_use_while_any_process_has_it_mounted(tmp_path: Path) -> None:
    write(tmp_path, status="", stat="", mounts="3 1 8:1 /q /run/aliquot/shares/share-a/quota ro\n")
    (tmp_path / "self").mkdir()
    assert processes.is_mounted_anywhere(frozenset({"share-a", "share-b"}), proc=tmp_path)
    assert not processes.is_mounted_anywhere(frozenset({"share-b"}), proc=tmp_path)
