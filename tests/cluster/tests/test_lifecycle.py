# SPDX-License-Identifier: Apache-2.0
"""Clusters come and go without a trace, and do not notice each other."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster import Cluster, TestbedError
from tests.cluster.cgroups import Cgroups
from tests.cluster.processes import Daemon, Processes
from tests.cluster.spec import Addresses, Layout, load
from tests.cluster.system import run, wait_until
from tests.cluster.tests.pods import busybox

MACHINE_SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")


def settings() -> dict[str, str]:
    """What a careless node would change for the whole machine."""
    found = {name: Path(f"/proc/sys/{name}").read_text() for name in MACHINE_SETTINGS}
    return {**found, "nft": run("nft", "list", "ruleset")}


def members(name: str) -> list[Path]:
    """The processes of a cluster: every one whose cgroup is below the cluster's, and who is not dead."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            is_dead = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"  # init's to bury
            if not is_dead and f":/testbed-{name}/" in (process / "cgroup").read_text():
                found.append(process)
    return found


def namespaces(processes: list[Path]) -> set[str]:
    """The network and mount namespaces that processes live in."""
    found = set()
    for process in processes:
        with suppress(OSError):  # dead, or not to be looked into
            found |= {str((process / "ns" / kind).readlink()) for kind in ("net", "mnt")}
    return found


def traces(name: str, addresses: Addresses, own: set[str]) -> list[str]:
    """What is left of a cluster on the machine, given the namespaces it had."""
    everybody = list(Path("/proc").glob("[0-9]*"))
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    root = str(Layout.of(name).root)
    return [
        *map(str, members(name)),
        *(namespaces(everybody) & own),
        *(line for line in mounts if root in line or any(namespace in line for namespace in own)),
        *map(str, Cgroups(cluster=name).leftovers()),
        *(line for line in run("ip", "-o", "link").splitlines() if f" {addresses.link}@" in line),
        *(
            line
            for line in run("ip", "route").splitlines()
            if line.startswith(addresses.all.split("0.0/")[0])
        ),
        *(line for line in run("losetup", "-a").splitlines() if root in line),
        *([root] if Path(root).exists() else []),
    ]


@pytest.fixture
def name() -> Iterator[str]:
    """A cluster name of the test's own, free again afterwards whatever happens."""
    chosen = f"life-{os.getpid()}"
    yield chosen
    if Layout.of(chosen).root.exists():
        Cluster.attach(chosen).down()


def test_down_leaves_nothing_of_a_cluster_with_a_running_pod(name: str) -> None:
    before = settings()
    with Cluster.up(name=name, node_disk_bytes=256 << 20) as cluster:
        cluster.apply(busybox("running", "exec sleep 1000"))
        cluster.wait_for_pod("running")
        during = settings()
        own = namespaces(members(name)) - namespaces([Path("/proc/self")])
        assert len(own) >= 4, "control plane's network, node's network and mounts, pod's network"
        assert traces(name, cluster.addresses, own)

    assert traces(name, cluster.addresses, own) == []
    assert before == during == settings()


def test_a_full_disk_is_the_nodes_own(name: str) -> None:
    with Cluster.up(name=name, node_disk_bytes=256 << 20) as cluster:
        cluster.fill_disk("node-1")
        with pytest.raises(TestbedError, match="No space left"):
            cluster.node_exec("node-1", ["dd", "if=/dev/zero", "of=/var/lib/some", "count=1"])
        cluster.free_disk("node-1")
        cluster.node_exec("node-1", ["sh", "-c", "echo something >/var/lib/some"])

        cluster.reboot("node-1")
        assert cluster.node_exec("node-1", ["cat", "/var/lib/some"]) == "something\n"


def test_two_clusters_do_not_notice_each_other(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.apply(busybox("same", "exec sleep 1000"), namespace=namespace)
    before = cluster.wait_for_pod("same", namespace)
    with Cluster.up(name=name) as other:
        assert other.server != cluster.server
        other.apply(busybox("same", "exec sleep 1000"))
        there = other.wait_for_pod("same")
        assert there["status"]["podIP"] != before["status"]["podIP"]
        other.reboot("node-1")
        assert len(other.list("pods")) == 1

    cluster.wait_ready(timeout_s=5)
    after = cluster.get("pods", "same", namespace)
    assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    cluster.exec("same", ["true"], namespace)


def test_what_a_killed_up_left_is_cleared_away_by_the_next(name: str) -> None:
    code = f"from tests.cluster import Cluster; Cluster.up(name={name!r})"
    maker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    try:
        log = Layout.of(name).logs / "node-1.containerd.log"
        wait_until(log.exists, what="the cluster to be half made", timeout_s=60, interval_s=0.01)
    finally:
        maker.send_signal(signal.SIGKILL)
        maker.wait()
    _, addresses, _ = load(Layout.of(name))
    own = namespaces(members(name)) - namespaces([Path("/proc/self")])
    assert own

    with Cluster.up(name=f"{name}-next") as following:
        assert following.addresses == addresses, "the dead cluster's addresses are free again"
    assert traces(name, addresses, own) == []


def test_a_cluster_that_does_not_come_up_says_why_and_leaves_nothing_but_its_logs(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(TestbedError, match=r"(?s)apiserver has ended.*NoSuchGate"):
        Cluster.up(name=name, gates={"NoSuchGate": True}, artifacts=tmp_path)

    assert members(name) == []
    assert not Layout.of(name).root.exists()
    assert "NoSuchGate" in (tmp_path / "daemons/apiserver.log").read_text()


def test_a_kept_cluster_outlives_its_maker_and_its_name_is_taken(name: str) -> None:
    command = [sys.executable, "-m", "tests.cluster"]
    printed = run(*command, "up", "--name", name)
    cluster = Cluster.attach(name)
    assert printed == f"export KUBECONFIG={cluster.kubeconfig}\n"
    assert "node-1" in run(*command, "exec", "--name", name, "--", "kubectl", "get", "nodes", "-o", "name")
    with pytest.raises(TestbedError, match="is up already"):
        Cluster.up(name=name)

    run(*command, "down", "--name", name)
    with pytest.raises(TestbedError, match="there is no cluster"):
        Cluster.attach(name)


def test_a_pid_that_now_belongs_to_somebody_else_is_left_alone(tmp_path: Path) -> None:
    processes = Processes(records=tmp_path, logs=tmp_path, cgroup_of=lambda _: tmp_path, path="/usr/bin:/bin")
    processes.start(Daemon("sleeper", ("sleep", "1000")))
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        record = tmp_path / "sleeper.json"
        ours = json.loads(record.read_text())
        try:
            record.write_text(json.dumps({"pid": stranger.pid, "born": f"{ours['born']}0"}))
            processes.kill("sleeper")
            assert stranger.poll() is None
        finally:
            stranger.kill()
        record.write_text(json.dumps(ours))
        processes.kill("sleeper")
    assert processes.pid("sleeper") is None
