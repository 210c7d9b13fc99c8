# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from aliquot_agent import processes
from aliquot_agent.processes import Disk, Identity


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
INNER_UID = "11111111-2222-3333-4444-555555555555"
UNDERSCORED = UID.replace("-", "_")
ID, INNER = "ab" * 32, "cd" * 32
SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/{ID}\n", [(UID, ID)], id="v2, cgroupfs, containerd"),
        pytest.param(f"0::{SYSTEMD}/cri-containerd-{ID}.scope\n", [(UID, ID)], id="v2, systemd, containerd"),
        pytest.param(f"0::{SYSTEMD}/crio-{ID}.scope/container\n", [(UID, ID)], id="v2, systemd, CRI-O"),
        pytest.param(f"0::/kubepods/besteffort/pod{UID}/crio-{ID}\n", [(UID, ID)], id="cgroupfs, CRI-O"),
        pytest.param(f"0::{SYSTEMD}/docker-{ID}.scope\n", [(UID, ID)], id="systemd, Docker"),
        pytest.param(
            f"12:pids:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{UID}/{ID}\n", [(UID, ID)], id="v1"
        ),
        pytest.param(
            f"2:cpu:/\n5:pids:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID}\n",
            [(UID, ID)],
            id="v1, systemd names under cgroupfs",
        ),
        pytest.param(
            f"0::/kubepods/pod{UID}/{ID}/docker/{INNER}\n", [(UID, ID)], id="container in a container"
        ),
        pytest.param(
            f"0::/kubepods/pod{UID}/{ID}/kubelet/kubepods/pod{INNER_UID}/{INNER}\n",
            [(UID, ID), (INNER_UID, INNER)],
            id="cluster in a pod",
        ),
        pytest.param(f"0::/../../pod{UID}/{ID}\n", [(UID, ID)], id="seen from a container"),
        pytest.param(f"0::/kubepods/pod{UID}\n", [(UID, "")], id="in the pod's own group"),
        pytest.param("0::/system.slice/sshd.service\n", [], id="no pod"),
        pytest.param("0::/user.slice/podman-1234.scope\n", [], id="not a UID"),
    ],
)
def test_pod_and_container_are_read_from_the_cgroup(
    tmp_path: Path, cgroup: str, found: list[tuple[str, str]]
) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text(cgroup)
    assert [(each.pod_uid, each.container_id) for each in processes.places(42, proc=tmp_path)] == found


def test_a_process_that_is_gone_is_in_no_pod(tmp_path: Path) -> None:
    assert processes.places(42, proc=tmp_path) == ()


CLAIMS = Disk(device="8:1", folder="/lib/aliquot/claims")
ELSEWHERE = Disk(device="0:25", folder="/aliquot-agent/claims")


@pytest.mark.parametrize(
    ("device", "source", "target", "counts"),
    [
        pytest.param("8:1", "/lib/aliquot/claims/c/s/quota", "s/quota", True, id="ours"),
        pytest.param("8:1", "/lib/aliquot/claims/c/s/quota//deleted", "s/quota", True, id="ours, unprepared"),
        pytest.param("0:77", "/lib/aliquot/claims/c/s/quota", "s/quota", False, id="a tmpfs of the tenant's"),
        pytest.param("8:1", "/lib/kubelet/pods/p/v/c/s/quota", "s/quota", False, id="an emptyDir"),
        pytest.param("8:1", "/lib/aliquot/claims/c/own/ledger", "s/quota", False, id="its own ledger"),
        pytest.param("8:1", "/lib/aliquot/claims/c/own/quota", "s/quota", False, id="its own quota"),
        pytest.param("8:1", "/lib/aliquot/claims/a/c/s/quota", "s/quota", False, id="deeper"),
    ],
)
def test_only_our_own_files_tell_a_share(
    tmp_path: Path, device: str, source: str, target: str, counts: bool
) -> None:
    mounts = f"3 1 {device} {source} /run/aliquot/shares/{target} ro - ext4 x rw\n"
    write(tmp_path, status="", stat="", mounts=mounts)
    assert processes.mounted_shares(42, claims=(ELSEWHERE, CLAIMS), proc=tmp_path) == (
        {"s"} if counts else frozenset()
    )


def test_where_a_directory_really_is_comes_from_the_mounts(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(
        "1 0 0:50 / / rw - overlay overlay rw\n"
        "2 1 8:1 /var/lib/al\\040iquot /var/lib/aliquot rw - ext4 /dev/sda1 rw\n"
    )
    found = processes.disk_of(Path("/var/lib/aliquot/claims"), proc=tmp_path)
    assert found == Disk(device="8:1", folder="/var/lib/al iquot/claims")


def test_this_machine_tells_where_a_directory_is(tmp_path: Path) -> None:
    found = processes.disk_of(tmp_path.resolve())
    assert found is not None
    assert found.folder.endswith(tmp_path.name)


@pytest.mark.parametrize(
    ("maps", "has"),
    [
        pytest.param("7f0-7f1 r-xp 00000000 08:01 42   /run/aliquot/lib/libaliquot.so\n", True, id="mapped"),
        pytest.param(
            "7f0-7f1 r-xp 0 08:01 42 /run/aliquot/lib/libaliquot.so (deleted)\n", True, id="an older version"
        ),
        pytest.param("7f0-7f1 r-xp 0 00:4d 42 /tmp/libaliquot.so\n", False, id="a file of the tenant's"),
        pytest.param("7f0-7f1 r-xp 0 08:01 42 /usr/lib/libc.so.6\n", False, id="not mapped"),
        pytest.param("", True, id="ending"),
    ],
)
def test_the_library_is_looked_for_in_the_maps(tmp_path: Path, maps: str, has: bool) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "maps").write_text(maps)
    assert processes.has_library(42, disk=CLAIMS, proc=tmp_path) is has


def test_a_command_name_is_safe_to_print(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "comm").write_bytes(b"a\x1b[2J\nb" + b"x" * 40)
    assert processes.command(42, proc=tmp_path) == "a?[2J?bxxxxxxxx"
    assert processes.command(43, proc=tmp_path) == "?"


def test_a_process_that_waits_to_be_reaped_is_gone(tmp_path: Path) -> None:
    write(tmp_path, status="", stat=f"42 (x) S {FIELDS.split(' ', 1)[1]}")
    assert processes.start_ticks(42, proc=tmp_path) == 22
    (tmp_path / "42" / "stat").write_text(f"42 (x) Z {FIELDS.split(' ', 1)[1]}")
    assert processes.start_ticks(42, proc=tmp_path) is None
    assert processes.start_ticks(43, proc=tmp_path) is None


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
    assert [place.pod_uid for place in processes.places(42, proc=tmp_path)] == [UID]


def test_a_share_is_in_use_while_any_process_has_it_mounted(tmp_path: Path) -> None:
    write(tmp_path, status="", stat="", mounts="3 1 8:1 /q /run/aliquot/shares/share-a/quota ro\n")
    (tmp_path / "self").mkdir()
    assert processes.is_mounted_anywhere(frozenset({"share-a", "share-b"}), proc=tmp_path)
    assert not processes.is_mounted_anywhere(frozenset({"share-b"}), proc=tmp_path)
