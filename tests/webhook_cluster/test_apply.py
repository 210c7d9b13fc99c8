# SPDX-License-Identifier: Apache-2.0
"""A manifest is applied again to the pod that came from it."""

import json
from typing import Any

import pytest

from tests.cluster import ApiError, Cluster
from tests.cluster.system import TestbedError
from tests.webhook_cluster.installation import Installation, container, pod

SERVER_SIDE = ("--server-side", "--force-conflicts")


def original(namespace: str) -> dict[str, Any]:
    """A pod with everything that we change, and a claim of the user's own."""
    main = container(vgpu=1, gpumem=100)
    main["resources"]["claims"] = [{"name": "nic"}]
    return pod(
        "p",
        namespace,
        main,
        container("side", gpumem=50, gpucores=10),
        initContainers=[container("first", gpumem=80)],
        resourceClaims=[{"name": "nic", "resourceClaimName": "nic"}],
        nodeName="node-1",
    )


def apply(cluster: Cluster, manifest: dict[str, Any], *flags: str) -> str:
    return cluster.kubectl("apply", "-f", "-", *flags, stdin=json.dumps(manifest))


@pytest.mark.parametrize("flags", [(), SERVER_SIDE], ids=["client side", "server side"])
def test_a_second_apply_of_the_original_succeeds_and_changes_nothing(
    cluster: Cluster, namespace: str, flags: tuple[str, ...]
) -> None:
    apply(cluster, original(namespace), *flags)
    before = cluster.get("pods", "p", namespace)["spec"]
    apply(cluster, original(namespace), *flags)
    changed = original(namespace)
    changed["metadata"]["labels"] = {"a": "b"}
    apply(cluster, changed, *flags)
    live = cluster.get("pods", "p", namespace)

    assert live["metadata"]["labels"] == {"a": "b"}
    for key in ("resourceClaims", "containers", "initContainers", "nodeSelector"):
        assert live["spec"][key] == before[key]


def test_an_apply_that_asks_for_something_else_is_refused_in_words(cluster: Cluster, namespace: str) -> None:
    apply(cluster, pod("p", namespace, container(gpumem=100)))
    with pytest.raises(TestbedError, match=r"aliquot\.dev/gpu-memory-limit"):
        apply(cluster, pod("p", namespace, container(gpumem=200)))


def test_other_updates_of_a_converted_pod_never_reach_us(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    cluster.api.create(pod("p", namespace, container(gpumem=100)))
    installation.stop("webhook")
    try:
        finalizers = {"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/a"]}}
        cluster.api.patch("pods", "p", finalizers, namespace=namespace)
        cluster.api.patch("pods", "p", {"metadata": {"finalizers": []}}, namespace=namespace)
        with pytest.raises(ApiError, match=r"pods\.aliquot\.dev"):
            cluster.api.create(pod("q", namespace, container(gpumem=100)))
    finally:
        installation.start("webhook")
        installation.wait_ready()
