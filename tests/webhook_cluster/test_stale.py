# SPDX-License-Identifier: Apache-2.0
"""Claims of pods that are gone, while kube-controller-manager, who should release them, does not."""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.webhook_cluster.installation import Installation, container, pod
from tests.webhook_cluster.test_admission import wait_allocated
from tests.webhook_cluster.test_claims import ask, claim, pod_with


@pytest.fixture
def orphans(cluster: Cluster, installation: Installation, namespace: str) -> Iterator[str]:
    """A namespace with two allocated claims, one made for a pod, one by hand, whose pods are gone by
    force."""
    cluster.api.create(pod("a", namespace, container(gpumem=100)))
    wait_allocated(cluster, namespace, "a")
    cluster.api.create(claim("mine", namespace, {"exactly": ask(memory="1Gi")}))
    cluster.api.create(pod_with("b", namespace, {"name": "gpu", "resourceClaimName": "mine"}))
    cluster.wait_for(lambda: _is_allocated(cluster, namespace, "mine") or None, what="allocation of mine")
    cluster.stop("controller-manager")
    try:
        for name in "ab":
            cluster.delete("pods", name, namespace, grace_s=0)
        yield namespace
    finally:
        cluster.start("controller-manager")


def _is_allocated(cluster: Cluster, namespace: str, name: str) -> bool:
    return "allocation" in cluster.get("resourceclaims", name, namespace).get("status", {})


def test_they_are_released_with_an_event(cluster: Cluster, installation: Installation, orphans: str) -> None:
    cluster.wait_for(
        lambda: (
            [each["metadata"]["name"] for each in cluster.list("resourceclaims", orphans)] == ["mine"] or None
        ),
        what="the pod's claim to be gone",
    )
    cluster.wait_for(lambda: not _is_allocated(cluster, orphans, "mine") or None, what="mine to be released")
    mine = cluster.get("resourceclaims", "mine", orphans)
    assert "reservedFor" not in mine["status"]
    assert not mine["metadata"].get("finalizers")
    events = [each for each in cluster.list("events", orphans) if each["reason"] == "StaleClaimReleased"]
    assert len(events) == 2
    assert all("are gone or have ended" in each["message"] for each in events)
    assert installation.metric("controller", "aliquot_controller_stale_claims_released_total") >= 2

    cluster.api.create(pod_with("again", orphans, {"name": "gpu", "resourceClaimName": "mine"}))
    cluster.wait_for(lambda: _is_allocated(cluster, orphans, "mine") or None, what="another allocation")


def test_a_dry_run_only_says_so(cluster: Cluster, installation: Installation, orphans: str) -> None:
    installation.stop("controller")
    installation.start("controller", stale_claims="report")
    try:
        cluster.wait_for(
            lambda: installation.metric("controller", "aliquot_controller_stale_claims") == 2 or None,
            what="both to be counted",
        )
        reasons = [each["reason"] for each in cluster.list("events", orphans)]
        assert reasons.count("StaleClaim") == 2
        assert "StaleClaimReleased" not in reasons
        assert _is_allocated(cluster, orphans, "mine")
    finally:
        installation.stop("controller")
        installation.start("controller")
        installation.wait_ready()
