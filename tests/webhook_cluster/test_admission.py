# SPDX-License-Identifier: Apache-2.0
"""Pods through the real API server, and their claims through the real scheduler."""

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import ApiError, Cluster
from tests.webhook_cluster.conftest import L4_MIB, without_own_policies
from tests.webhook_cluster.installation import ACCOUNT, GRACE_S, Installation, container, pod, refusal


def allocation(cluster: Cluster, namespace: str, name: str) -> list[dict[str, Any]] | None:
    """The allocation results of a pod's claim, None while it has none."""
    for claim in cluster.list("resourceclaims", namespace):
        owners = claim["metadata"].get("ownerReferences", [])
        if any(owner["name"] == name for owner in owners) and "allocation" in claim.get("status", {}):
            results: list[dict[str, Any]] = claim["status"]["allocation"]["devices"]["results"]
            return results
    return None


def wait_allocated(cluster: Cluster, namespace: str, name: str) -> list[dict[str, Any]]:
    return cluster.wait_for(
        lambda: allocation(cluster, namespace, name), what=f"allocation of {name}", timeout_s=30
    )


def wait_unschedulable(cluster: Cluster, namespace: str, name: str) -> None:
    def condition() -> bool:
        conditions = cluster.get("pods", name, namespace)["status"].get("conditions", [])
        return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)

    cluster.wait_for(lambda: condition() or None, what=f"{name} to be unschedulable", timeout_s=30)


def test_shares_are_scheduled_until_the_memory_is_used_up(cluster: Cluster, namespace: str) -> None:
    for index in range(4):
        cluster.api.create(pod(f"p{index}", namespace, container(vgpu=1, gpumem=11000)))
    consumed = [wait_allocated(cluster, namespace, f"p{index}")[0]["consumedCapacity"] for index in range(4)]
    assert consumed == [{"memory": "11000Mi", "cores": "0", "shares": "1"}] * 4

    cluster.api.create(pod("late", namespace, container(vgpu=1, gpumem=11000)))
    wait_unschedulable(cluster, namespace, "late")
    cluster.delete("pods", "p0", namespace, grace_s=0)
    assert wait_allocated(cluster, namespace, "late")


def test_each_container_gets_its_own_share(cluster: Cluster, namespace: str) -> None:
    given = pod("p", namespace, container("a", gpumem=1000), container("b", gpumem=5000, gpucores=30))
    live = cluster.api.create(given)
    assert [each["resources"]["claims"] for each in live["spec"]["containers"]] == [
        [{"name": "aliquot", "request": "a"}],
        [{"name": "aliquot", "request": "b"}],
    ]
    results = {each["request"]: each["consumedCapacity"] for each in wait_allocated(cluster, namespace, "p")}
    assert results["a"]["memory"] == "1000Mi"
    assert results["b"] == {"memory": "5000Mi", "cores": "30", "shares": "1"}


def test_whole_cards_and_exclusive_shares_keep_everybody_else_out(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(pod("whole", namespace, container(vgpu=1)))
    (whole,) = wait_allocated(cluster, namespace, "whole")
    assert whole["consumedCapacity"] == {"memory": f"{L4_MIB}Mi", "cores": "100", "shares": "1"}

    cluster.api.create(pod("alone", namespace, container(gpumem=1000, gpucores=100)))
    (alone,) = wait_allocated(cluster, namespace, "alone")
    assert alone["consumedCapacity"] == {"memory": "1000Mi", "cores": "100", "shares": "16"}
    assert alone["device"] != whole["device"]

    cluster.api.create(pod("small", namespace, container(gpumem=1)))
    wait_unschedulable(cluster, namespace, "small")


def test_two_gpus_for_one_container_are_two_different_ones(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(pod("pair", namespace, container(vgpu=2, gpumem=100), container("one", gpumem=50)))
    cluster.wait_for(
        lambda: cluster.get("pods", "pair", namespace)["spec"].get("nodeName"), what="the pod to be scheduled"
    )
    (pair,) = [
        claim["status"]["allocation"]["devices"]["results"]
        for claim in cluster.list("resourceclaims", namespace)
        if "100Mi" in json.dumps(claim["status"]["allocation"])
    ]
    assert len({each["device"] for each in pair if each["consumedCapacity"]["memory"] == "100Mi"}) == 2


def test_an_init_container_uses_a_share_that_is_large_enough(cluster: Cluster, namespace: str) -> None:
    given = pod("p", namespace, container(gpumem=5000), initContainers=[container("first", gpumem=4000)])
    live = cluster.api.create(given)
    assert live["spec"]["initContainers"][0]["resources"]["claims"] == [
        {"name": "aliquot", "request": "main"}
    ]
    (result,) = wait_allocated(cluster, namespace, "p")
    assert result["consumedCapacity"]["memory"] == "5000Mi"


def test_a_percentage_is_of_the_card_that_the_pod_gets(cluster: Cluster, namespace: str) -> None:
    half = container()
    half["resources"] = {"limits": {"nvidia.com/gpumem-percentage": 50}}
    cluster.api.create(pod("p", namespace, half))
    (result,) = wait_allocated(cluster, namespace, "p")
    assert result["consumedCapacity"]["memory"] == f"{L4_MIB // 2}Mi"


@pytest.mark.parametrize(("annotation", "cards"), [("same-gpu", 1), ("spread-gpus", 2)])
def test_containers_on_one_gpu_or_on_different_ones(
    cluster: Cluster, namespace: str, annotation: str, cards: int
) -> None:
    given = pod("p", namespace, container("a", gpumem=100), container("b", gpumem=200))
    given["metadata"]["annotations"] = {f"aliquot.dev/{annotation}": "true"}
    cluster.api.create(given)
    assert len({each["device"] for each in wait_allocated(cluster, namespace, "p")}) == cards


def test_a_node_name_becomes_a_selector_and_the_scheduler_sends_the_pod_there(
    cluster: Cluster, namespace: str
) -> None:
    live = cluster.api.create(pod("p", namespace, container(gpumem=10), nodeName="node-1"))
    assert live["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "node-1"}
    assert wait_allocated(cluster, namespace, "p")
    assert cluster.get("pods", "p", namespace)["spec"]["nodeName"] == "node-1"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"gpumem": 0}, "at least 1 (MiB)"),
        ({"gpumem": "8Gi"}, "did you mean 8192?"),
        ({"gpumem": L4_MIB + 1}, f"the largest, NVIDIA L4, has {L4_MIB} (MiB)"),
        ({"gpumem": "500m"}, "whole number of MiB"),
        ({"vgpu": 3}, "no node has more than 2"),
        ({"vgpu": -1}, "at least 1"),
        ({"vgpu": 1, "gpumem-percentage": 101}, "from 1 to 100"),
    ],
)
def test_bad_requests_are_refused_in_words(
    cluster: Cluster, namespace: str, limits: dict[str, Any], says: str
) -> None:
    message = refusal(cluster, pod("bad", namespace, container(**limits)))

    assert "spec.containers[0].resources.limits[nvidia.com/" in message
    assert says in message
    assert cluster.list("resourceclaimtemplates", namespace) == []


def test_text_for_a_number_is_refused(cluster: Cluster, namespace: str) -> None:
    assert "quantities must match" in refusal(cluster, pod("bad", namespace, container(gpumem="lots")))


def test_a_dry_run_answers_and_writes_nothing(
    cluster: Cluster, namespace: str, templates: Callable[[], list[str]]
) -> None:
    live = cluster.api.create(pod("p", namespace, container(gpumem=100)), dry_run=True)

    assert live["spec"]["resourceClaims"][0]["resourceClaimTemplateName"].startswith("aliquot-1x100mi-")
    assert templates() == []


def test_a_spec_that_is_known_costs_no_call(
    cluster: Cluster, installation: Installation, namespace: str, templates: Callable[[], list[str]]
) -> None:
    cluster.api.create(pod("first", namespace, container(gpumem=100)))
    mark, started = cluster.audit.mark(), time.monotonic()
    for index in range(20):
        cluster.api.create(pod(f"p{index}", namespace, container(gpumem=100)))
    # On a busy machine the short grace of these tests may run out, and the template be kept for longer.
    refreshes = (time.monotonic() - started) // (GRACE_S / 4)
    requests = [
        event["verb"]
        for event in cluster.audit.requests(since=mark, user=ACCOUNT)
        if event.get("objectRef", {}).get("namespace") == namespace
    ]
    assert set(requests) <= {"patch"}
    assert len(requests) <= refreshes
    assert len(templates()) == 1


def test_a_limit_range_default_does_not_come_back(cluster: Cluster, namespace: str) -> None:
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "defaults", "namespace": namespace},
            "spec": {"limits": [{"type": "Container", "default": {"nvidia.com/gpumem": "4000"}}]},
        }
    )
    cluster.wait_for(
        lambda: (
            cluster.api.create(pod("probe", namespace, container(gpumem=8000)), dry_run=True)["metadata"]
            .get("annotations", {})
            .get("kubernetes.io/limit-ranger", "")
            or cluster.api.create(pod("probe", namespace, container()), dry_run=True)["spec"].get(
                "resourceClaims"
            )
        ),
        what="the LimitRange to be in force",
    )
    explicit = cluster.api.create(pod("explicit", namespace, container(gpumem=8000)))
    implicit = cluster.api.create(pod("implicit", namespace, container()))

    for live, size in ((explicit, "8000"), (implicit, "4000")):
        resources = live["spec"]["containers"][0]["resources"]
        assert "nvidia.com/gpumem" not in {**resources.get("limits", {}), **resources.get("requests", {})}
        template = live["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
        assert template.startswith(f"aliquot-1x{size}mi-")


def test_pods_that_ask_for_nothing_and_unlabelled_namespaces_are_untouched(
    cluster: Cluster, namespace: str, plain_namespace: str
) -> None:
    plain = cluster.api.create(pod("plain", namespace, container()))
    assert "resourceClaims" not in plain["spec"]
    elsewhere = cluster.api.create(pod("gpu", plain_namespace, container(vgpu=1)))
    assert elsewhere["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/vgpu": "1"}

    opted_out = pod("out", namespace, container(vgpu=1))
    opted_out["metadata"]["labels"] = {"aliquot.dev/inject": "disabled"}
    assert "resourceClaims" not in cluster.api.create(opted_out)["spec"]


def test_every_kind_of_pod_that_asks_reaches_us(cluster: Cluster, namespace: str) -> None:
    only_requests = container()
    only_requests["resources"] = {"requests": {"nvidia.com/gpumem": "10"}}
    assert "resourceClaims" in cluster.api.create(pod("requests", namespace, only_requests))["spec"]

    initial = pod("init", namespace, container(), initContainers=[container("i", gpumem=10)])
    assert "resourceClaims" in cluster.api.create(initial)["spec"]
    privileged = {**container(gpumem=1), "securityContext": {"privileged": True}}
    assert "privileged" in refusal(cluster, pod("privileged", namespace, privileged))
    pod_level = pod("level", namespace, container(), resources={"limits": {"nvidia.com/vgpu": "1"}})
    assert "spec.resources.limits[nvidia.com/vgpu]" in refusal(cluster, pod_level)


def test_a_pod_name_of_253_characters_with_dots(cluster: Cluster, namespace: str) -> None:
    name = ".".join(["a" * 60, "b" * 60, "c" * 60, "d" * 60, "e" * 9])
    assert len(name) == 253
    cluster.api.create(pod(name, namespace, container(gpumem=10)))

    assert wait_allocated(cluster, namespace, name)


def test_a_deployment_in_the_namespace_works_through_its_controller(
    cluster: Cluster, namespace: str, templates: Callable[[], list[str]]
) -> None:
    labels = {"app": "train"}
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "train", "namespace": namespace},
            "spec": {
                "replicas": 5,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container(gpumem=1000)]},
                },
            },
        }
    )

    def allocated() -> list[str]:
        return [
            claim["metadata"]["name"]
            for claim in cluster.list("resourceclaims", namespace)
            if "allocation" in claim.get("status", {})
        ]

    cluster.wait_for(lambda: len(allocated()) == 5 or None, what="five allocated claims")
    assert len(templates()) == 1


def test_a_second_admission_of_a_converted_pod_changes_nothing(cluster: Cluster, namespace: str) -> None:
    first = cluster.api.create(pod("p", namespace, container("a", gpumem=10), container("b", vgpu=1)))
    copied = copy.deepcopy(first)
    copied["metadata"] = {
        "name": "copy",
        "namespace": namespace,
        "annotations": first["metadata"]["annotations"],
    }
    second = cluster.api.create(copied, dry_run=True)

    assert second["spec"]["resourceClaims"] == first["spec"]["resourceClaims"]
    assert second["spec"]["containers"] == first["spec"]["containers"]
    record = json.loads(second["metadata"]["annotations"]["aliquot.dev/original-request"])
    assert record == {"a": {"nvidia.com/gpumem": "10"}, "b": {"nvidia.com/vgpu": "1"}}


def test_a_claim_of_the_users_own_stays(cluster: Cluster, namespace: str) -> None:
    own = pod(
        "p",
        namespace,
        container(gpumem=10),
        resourceClaims=[{"name": "nic", "resourceClaimName": "my-nic"}],
    )
    own["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    live = cluster.api.create(own)
    assert live["spec"]["resourceClaims"][0] == {"name": "nic", "resourceClaimName": "my-nic"}
    assert live["spec"]["containers"][0]["resources"]["claims"][0] == {"name": "nic"}

    taken = pod(
        "q", namespace, container(gpumem=10), resourceClaims=[{"name": "aliquot", "resourceClaimName": "x"}]
    )
    assert "spec.resourceClaims[0].name" in refusal(cluster, taken)


def test_a_template_forged_under_our_name_is_not_used(
    cluster: Cluster, namespace: str, templates: Callable[[], list[str]]
) -> None:
    name = cluster.api.create(pod("p", namespace, container(gpumem=10)), dry_run=True)["spec"][
        "resourceClaims"
    ][0]["resourceClaimTemplateName"]
    request = {"name": "main", "exactly": {"deviceClassName": "gpu.aliquot.dev"}}
    with without_own_policies(cluster):  # as before there were any
        cluster.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"spec": {"devices": {"requests": [request]}}},
            }
        )
    with pytest.raises(ApiError, match="does not say what its name stands for"):
        cluster.api.create(pod("p", namespace, container(gpumem=10)))
