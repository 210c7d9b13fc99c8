# SPDX-License-Identifier: Apache-2.0
"""Whatever way a creation fails, nothing is left of it, and the name can be had later."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster import ApiError, Cluster
from tests.webhook_cluster.installation import Installation, container, pod, refusal
from tests.webhook_cluster.test_admission import wait_allocated

Templates = Callable[[], list[str]]


def assert_nothing_is_left(cluster: Cluster, namespace: str, templates: Templates) -> None:
    """No claim at once, and no template after the grace."""
    assert cluster.list("pods", namespace) == []
    cluster.wait_for(lambda: not cluster.list("resourceclaims", namespace) or None, what="no claim")
    cluster.wait_for(lambda: not templates() or None, what="no template", timeout_s=30)


def quota(namespace: str, **hard: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "later", "namespace": namespace},
        "spec": {"hard": hard},
    }


def test_a_dry_run_leaves_nothing_at_all(cluster: Cluster, namespace: str, templates: Templates) -> None:
    for _ in range(5):
        cluster.api.create(pod("p", namespace, container(gpumem=100)), dry_run=True)
    assert templates() == []
    assert_nothing_is_left(cluster, namespace, templates)


def test_a_creation_that_a_later_quota_refuses(
    cluster: Cluster, namespace: str, templates: Templates
) -> None:
    cluster.apply(quota(namespace, pods="0"))
    given = pod("p", namespace, container(gpumem=100))

    def refused() -> bool:
        try:
            cluster.api.create(given, dry_run=True)
        except ApiError as error:
            return "exceeded quota" in error.message
        return False

    cluster.wait_for(lambda: refused() or None, what="the quota to count")
    assert "exceeded quota: later" in refusal(cluster, given)
    assert_nothing_is_left(cluster, namespace, templates)

    cluster.delete("resourcequotas", "later", namespace)
    cluster.api.create(given)
    assert wait_allocated(cluster, namespace, "p")


def test_a_creation_that_validation_refuses(cluster: Cluster, namespace: str, templates: Templates) -> None:
    bad = pod("p", namespace, container(gpumem=100), restartPolicy="Sometimes")
    assert "restartPolicy" in refusal(cluster, bad)
    bad_name = pod("Not.A.Name", namespace, container(gpumem=100))
    assert "metadata.name" in refusal(cluster, bad_name)
    assert_nothing_is_left(cluster, namespace, templates)

    cluster.api.create(pod("p", namespace, container(gpumem=100)))
    cluster.api.create(pod("a.name.with.dots", namespace, container(gpumem=100)))
    assert wait_allocated(cluster, namespace, "a.name.with.dots")


def test_the_same_name_twice_is_a_conflict(cluster: Cluster, namespace: str, templates: Templates) -> None:
    given = pod("p", namespace, container(gpumem=100))
    cluster.api.create(given)
    for _ in range(3):
        with pytest.raises(ApiError) as no:
            cluster.api.create(given)
        assert no.value.status == 409
    wait_allocated(cluster, namespace, "p")
    assert len(cluster.list("resourceclaims", namespace)) == 1
    cluster.delete("pods", "p", namespace, grace_s=0)
    assert_nothing_is_left(cluster, namespace, templates)
    cluster.api.create(given)
    assert wait_allocated(cluster, namespace, "p")


def test_a_loop_of_generated_names(cluster: Cluster, namespace: str, templates: Templates) -> None:
    """A controller that tries again and again: most attempts fail, some get through."""
    cluster.apply(quota(namespace, pods="3"))

    def attempt(_: int) -> bool:
        given = pod("", namespace, container(gpumem=100))
        given["metadata"] = {"generateName": "try-", "namespace": namespace}
        try:
            cluster.api.create(given)
        except ApiError as error:
            if error.status != 403:
                raise
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(attempt, range(60)))
    live = [each["metadata"]["name"] for each in cluster.list("pods", namespace)]
    assert len(live) == sum(outcomes)
    for name in live:
        wait_allocated(cluster, namespace, name)
    assert len(cluster.list("resourceclaims", namespace)) == len(live)
    assert len(templates()) == 1
    for name in live:
        cluster.delete("pods", name, namespace, grace_s=0)
    assert_nothing_is_left(cluster, namespace, templates)


def test_pods_deleted_while_everything_of_ours_is_dead(
    cluster: Cluster, installation: Installation, namespace: str, templates: Templates
) -> None:
    for name in "abc":
        cluster.api.create(pod(name, namespace, container(gpumem=100)))
        wait_allocated(cluster, namespace, name)
    for name in ("webhook", "controller"):
        installation.stop(name)
    try:
        for name in "abc":
            cluster.delete("pods", name, namespace, grace_s=0)
        cluster.wait_for(lambda: not cluster.list("resourceclaims", namespace) or None, what="no claim")
    finally:
        for name in ("webhook", "controller"):
            installation.start(name)
        installation.wait_ready()
    assert_nothing_is_left(cluster, namespace, templates)


def test_a_users_own_claim_is_never_touched(cluster: Cluster, namespace: str, templates: Templates) -> None:
    own = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "my-nic", "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example"}}]}},
    }
    before = cluster.api.create(own)
    given = pod(
        "p",
        namespace,
        container(gpumem=10),
        resourceClaims=[{"name": "nic", "resourceClaimName": "my-nic"}],
    )
    given["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    cluster.api.create(given)
    cluster.delete("pods", "p", namespace, grace_s=0)
    cluster.wait_for(lambda: not templates() or None, what="no template", timeout_s=30)
    cluster.wait_for(
        lambda: (
            [each["metadata"]["name"] for each in cluster.list("resourceclaims", namespace)] == ["my-nic"]
            or None
        ),
        what="our claim to be gone",
    )
    after = cluster.get("resourceclaims", "my-nic", namespace)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
