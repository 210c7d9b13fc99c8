# SPDX-License-Identifier: Apache-2.0
"""Budgets of namespaces on the real API server, with several webhooks."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import ApiError, Cluster
from tests.webhook_cluster.installation import Installation, container, pod, refusal
from tests.webhook_cluster.test_admission import wait_allocated
from tests.webhook_cluster.test_claims import annotate, ask, claim, pod_with, template


def set_budget(cluster: Cluster, namespace: str, **spec: object) -> None:
    """Write a budget and wait until the webhooks count."""
    cluster.apply(
        {
            "apiVersion": "aliquot.dev/v1alpha1",
            "kind": "AliquotBudget",
            "metadata": {"name": "main", "namespace": namespace},
            "spec": spec,
        }
    )


def status(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("aliquotbudgets", "main", namespace).get("status", {})
    return found


def wait_used(cluster: Cluster, namespace: str, memory: str, *, consumed: str | None = None) -> None:
    def reached() -> bool:
        found = status(cluster, namespace)
        return found.get("used", {}).get("memory") == memory and consumed in (
            None,
            found.get("consumed", {}).get("memory"),
        )

    cluster.wait_for(lambda: reached() or None, what=f"{memory} used, {consumed} consumed", timeout_s=30)


@pytest.fixture
def budgeted(cluster: Cluster, namespace: str) -> str:
    """A namespace that may have 10000Mi; every webhook knows it, since the controller does."""
    set_budget(cluster, namespace, memory="10000Mi")
    wait_used(cluster, namespace, "0Mi")
    return namespace


def test_pods_are_admitted_up_to_the_budget_and_what_goes_can_be_had_again(
    cluster: Cluster, installation: Installation, budgeted: str
) -> None:
    cluster.api.create(pod("a", budgeted, container(gpumem=6000)))
    cluster.api.create(pod("b", budgeted, container(gpumem=4000)))
    message = refusal(cluster, pod("c", budgeted, container(gpumem=1)))
    assert "pods.aliquot.dev" in message
    assert "GPU memory: 1Mi would exceed the namespace's budget of 10000Mi (AliquotBudget main)" in message
    wait_allocated(cluster, budgeted, "a")
    wait_allocated(cluster, budgeted, "b")
    wait_used(cluster, budgeted, "10000Mi", consumed="10000Mi")
    for kind in ("limit", "used", "consumed"):
        series = f'aliquot_budget{{kind="{kind}",namespace="{budgeted}",resource="memory"}}'
        assert installation.metric("controller", series) == 10000 * 2**20, kind

    cluster.delete("pods", "a", budgeted, grace_s=0)
    wait_used(cluster, budgeted, "4000Mi", consumed="4000Mi")
    cluster.api.create(pod("c", budgeted, container(gpumem=6000)))


def test_hand_written_claims_and_templates_are_counted_in_opted_out_namespaces_too(
    cluster: Cluster, plain_namespace: str
) -> None:
    set_budget(cluster, plain_namespace, memory="3Gi", gpus=2)
    wait_used(cluster, plain_namespace, "0Mi")
    assert "4096Mi would exceed" in refusal(
        cluster, template("large", plain_namespace, {"exactly": ask(memory="4Gi")})
    )
    cluster.api.create(template("fits", plain_namespace, {"exactly": ask(memory="2Gi")}))
    cluster.api.create(claim("first", plain_namespace, {"exactly": ask(memory="2Gi")}))
    assert "claims.aliquot.dev" in refusal(
        cluster, claim("second", plain_namespace, {"exactly": ask(memory="2Gi")})
    )

    # A pod with the template never came to us: its claim does.
    pending = pod_with("p", plain_namespace, {"name": "gpu", "resourceClaimTemplateName": "fits"})
    cluster.api.create(pending)
    cluster.wait_for(
        lambda: [each for each in _events(cluster, plain_namespace) if "GPU memory: 2048Mi" in each] or None,
        what="an event that names the budget",
    )
    cluster.delete("resourceclaims", "first", plain_namespace)
    cluster.wait_for(
        lambda: cluster.list("resourceclaims", plain_namespace) or None, what="the pod's claim", timeout_s=60
    )


def _events(cluster: Cluster, namespace: str) -> list[str]:
    return [each["message"] for each in cluster.list("events", namespace)]


def test_a_quota_that_hami_users_have_is_honoured(cluster: Cluster, namespace: str) -> None:
    hard = {"limits.nvidia.com/gpumem": "5000", "requests.nvidia.com/vgpu": "3"}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpu", "namespace": namespace},
            "spec": {"hard": hard},
        }
    )
    large = pod("a", namespace, container(gpumem=5001))
    cluster.wait_for(
        lambda: is_refused(cluster, large, "ResourceQuota gpu, limits.nvidia.com/gpumem") or None,
        what="the quota to count",
    )
    for name in "abc":
        cluster.api.create(pod(name, namespace, container(gpumem=100)))
    assert "GPU gpus: 1 would exceed the namespace's budget of 3" in refusal(
        cluster, pod("d", namespace, container(gpumem=100))
    )


def is_refused(cluster: Cluster, manifest: dict[str, Any], says: str) -> bool:
    try:
        cluster.api.create(manifest, dry_run=True)
    except ApiError as error:
        return says in error.message
    return False


def test_whole_cards_count_as_the_largest_and_a_bad_budget_is_no_budget(
    cluster: Cluster, budgeted: str
) -> None:
    assert "23034Mi would exceed" in refusal(cluster, pod("a", budgeted, container(vgpu=1)))
    for spec in ({"memory": "64"}, {"memory": "much"}, {"gpus": -1}, {"ram": "1Gi"}, {}):
        with pytest.raises(ApiError):
            cluster.api.create(
                {
                    "apiVersion": "aliquot.dev/v1alpha1",
                    "kind": "AliquotBudget",
                    "metadata": {"name": "bad", "namespace": budgeted},
                    "spec": spec,
                }
            )


def test_the_documented_budget_is_one(cluster: Cluster, plain_namespace: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "budgets.md").read_text()
    documented = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    documented["metadata"]["namespace"] = plain_namespace
    cluster.api.create(documented)
    wait_used(cluster, plain_namespace, "0Mi", consumed="0Mi")
    shown = cluster.kubectl("get", "aliquotbudgets", "-n", plain_namespace)
    assert "64Gi" in shown


def test_a_resize_is_charged(cluster: Cluster, budgeted: str) -> None:
    cluster.api.create(pod("a", budgeted, container(gpumem=4000)))
    cluster.api.create(pod("b", budgeted, container(gpumem=4000)))
    wait_allocated(cluster, budgeted, "a")
    annotate(cluster, budgeted, "a", "6000Mi")
    with pytest.raises(ApiError, match="GPU memory: 4001Mi would exceed"):
        annotate(cluster, budgeted, "b", "4001Mi")
    wait_used(cluster, budgeted, "10000Mi")
    annotate(cluster, budgeted, "a", "100Mi")  # given back when the controller has looked
    wait_used(cluster, budgeted, "8000Mi")
    annotate(cluster, budgeted, "b", "6000Mi")


def test_claims_from_before_the_budget_and_restarts_of_everybody_change_nothing(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    cluster.api.create(pod("old", namespace, container(gpumem=7000)))
    wait_allocated(cluster, namespace, "old")
    set_budget(cluster, namespace, memory="10000Mi")
    wait_used(cluster, namespace, "7000Mi")
    cluster.api.create(pod("new", namespace, container(gpumem=3000)))
    for name in ("webhook", "controller"):
        installation.stop(name)
        installation.start(name)
    installation.wait_ready()
    assert "would exceed" in refusal(cluster, pod("late", namespace, container(gpumem=1)))
    wait_used(cluster, namespace, "10000Mi")

    cluster.delete("aliquotbudgets", "main", namespace)
    late = pod("late", namespace, container(gpumem=3000))
    cluster.wait_for(lambda: not is_refused(cluster, late, "exceed") or None, what="the budget to be gone")


def test_a_pod_that_never_appears_gives_its_reservation_back(cluster: Cluster, budgeted: str) -> None:
    """Refused after us, by a quota on the number of pods."""
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "no-pods", "namespace": budgeted},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    given = pod("a", budgeted, container(gpumem=10000))
    cluster.wait_for(lambda: is_refused(cluster, given, "no-pods") or None, what="the quota to count")
    assert "exceeded quota: no-pods" in refusal(cluster, given)
    cluster.delete("resourcequotas", "no-pods", budgeted)
    cluster.wait_for(
        lambda: _creates(cluster, given) or None, what="the reservation to be over", timeout_s=20
    )


def _creates(cluster: Cluster, manifest: dict[str, Any]) -> bool:
    try:
        cluster.api.create(manifest)
    except ApiError:
        return False
    return True


def test_two_webhooks_and_many_clients_never_promise_more_than_there_is(
    cluster: Cluster, installation: Installation, budgeted: str
) -> None:
    chance = random.Random(7)
    wanted = [
        pod(f"p{index}", budgeted, container(gpumem=chance.choice([500, 1000, 3000]))) for index in range(30)
    ] + [
        claim(f"c{index}", budgeted, {"exactly": ask(memory=f"{chance.choice([500, 1000])}Mi")})
        for index in range(15)
    ]
    chance.shuffle(wanted)
    installation.start("webhook-2")
    try:
        cluster.wait_for(lambda: installation.is_ready("webhook-2") or None, what="the second webhook")
        with ThreadPoolExecutor(12) as pool:
            admitted = list(pool.map(lambda manifest: _creates(cluster, manifest), wanted))
        cluster.wait_for(lambda: _all_have_claims(cluster, budgeted) or None, what="the pods' claims")
    finally:
        installation.stop("webhook-2")
    promised = sum(_memory_mib(each) for each in cluster.list("resourceclaims", budgeted))
    assert 9000 <= promised <= 10000  # full to within the smallest size, or nearly
    assert any(admitted)
    assert not all(admitted)


def _all_have_claims(cluster: Cluster, namespace: str) -> bool:
    return all(
        each.get("status", {}).get("resourceClaimStatuses") for each in cluster.list("pods", namespace)
    )


def _memory_mib(of: dict[str, Any]) -> int:
    written = of["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"]
    return int(written.removesuffix("Mi"))
