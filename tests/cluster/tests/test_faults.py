# SPDX-License-Identifier: Apache-2.0
"""Each fault does what it says, and the cluster recovers from it."""

import pytest

from tests.cluster import Cluster, TestbedError
from tests.cluster.tests.pods import busybox


def test_pods_survive_a_restart_of_kubelet_and_containerd(cluster: Cluster, namespace: str) -> None:
    cluster.apply(busybox("survivor", "exec sleep 1000", nodeName=cluster.nodes[0]), namespace=namespace)
    before = cluster.wait_for_pod("survivor", namespace)["status"]["containerStatuses"]
    old_pid = cluster.pid("node-1/kubelet")

    cluster.stop("node-1/kubelet")
    cluster.kill("node-1/containerd")
    assert cluster.state("node-1/kubelet") == "stopped"
    cluster.start("node-1/containerd")
    cluster.start("node-1/kubelet")
    cluster.wait_node("node-1", ready=True)

    assert cluster.pid("node-1/kubelet") not in (old_pid, None)
    said = cluster.wait_for(lambda: cluster.exec("survivor", ["echo", "alive"], namespace), what="an answer")
    assert said == "alive\n"
    assert cluster.get("pods", "survivor", namespace)["status"]["containerStatuses"] == before


def test_a_rebooted_node_has_a_new_boot_id_an_empty_run_and_its_old_files(
    cluster: Cluster, namespace: str
) -> None:
    cluster.apply(busybox("again", "exec sleep 1000", nodeName="node-1"), namespace=namespace)
    cluster.wait_for_pod("again", namespace)
    for folder in ("/run", "/var/lib", "/etc"):
        cluster.node_exec("node-1", ["touch", f"{folder}/mark"])
    boot_id = cluster.get("nodes", "node-1")["status"]["nodeInfo"]["bootID"]

    cluster.reboot("node-1")

    assert cluster.get("nodes", "node-1")["status"]["nodeInfo"]["bootID"] != boot_id
    found = cluster.node_exec(
        "node-1", ["sh", "-c", "ls /run/mark /var/lib/mark /etc/mark 2>/dev/null; true"]
    )
    assert found.split() == ["/etc/mark", "/var/lib/mark"]

    def is_restarted() -> bool:
        [status] = cluster.get("pods", "again", namespace)["status"]["containerStatuses"]
        return bool(status["restartCount"] == 1 and status["ready"])

    cluster.wait_for(is_restarted, what="the pod to run again")


def test_a_cut_node_is_missed_and_comes_back_with_its_pods_untouched(
    cluster: Cluster, namespace: str
) -> None:
    cluster.apply(busybox("alone", "exec sleep 1000", nodeName="node-1"), namespace=namespace)
    before = cluster.wait_for_pod("alone", namespace)["status"]["containerStatuses"]

    cluster.cut("node-1")
    cluster.wait_node("node-1", ready=False, timeout_s=40)
    with pytest.raises(TestbedError):
        cluster.kubectl("exec", "alone", "-n", namespace, "--request-timeout=2s", "--", "true", timeout_s=3)
    cluster.heal("node-1")
    cluster.wait_node("node-1", ready=True)

    assert cluster.get("pods", "alone", namespace)["status"]["containerStatuses"] == before


def test_nothing_is_scheduled_while_the_scheduler_is_paused(cluster: Cluster, namespace: str) -> None:
    cluster.pause("scheduler")
    try:
        assert cluster.state("scheduler") == "paused"
        cluster.apply(busybox("waiting", "exec sleep 1000"), namespace=namespace)
        with pytest.raises(TestbedError, match="to be Ready"):
            cluster.wait_for_pod("waiting", namespace, timeout_s=2)
    finally:
        cluster.resume("scheduler")
    cluster.wait_for_pod("waiting", namespace)


@pytest.mark.parametrize("daemon", ["apiserver", "etcd"])
def test_objects_survive_the_death_of(cluster: Cluster, namespace: str, daemon: str) -> None:
    mark = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mark"}, "data": {"some": "thing"}}
    cluster.apply(mark, namespace=namespace)

    cluster.kill(daemon)
    cluster.start(daemon)
    cluster.wait_ready()

    assert cluster.get("configmaps", "mark", namespace)["data"] == {"some": "thing"}


def test_a_deleted_node_object_returns_with_its_kubelet(cluster: Cluster) -> None:
    uid = cluster.get("nodes", "node-1")["metadata"]["uid"]

    cluster.delete_node("node-1")
    cluster.rejoin("node-1")

    assert cluster.get("nodes", "node-1")["metadata"]["uid"] != uid


def test_a_daemon_or_node_that_does_not_exist_is_named_with_those_that_do(cluster: Cluster) -> None:
    with pytest.raises(TestbedError, match=r"no daemon 'kublet'; there are etcd, apiserver"):
        cluster.stop("kublet")
    with pytest.raises(TestbedError, match=r"no node 'node-99'; there are node-1"):
        cluster.cut("node-99")
