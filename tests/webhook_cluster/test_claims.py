# SPDX-License-Identifier: Apache-2.0
"""Claims, templates and pods that were written by hand, on the real API server."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import ApiError, Cluster
from tests.webhook_cluster.conftest import L4_MIB
from tests.webhook_cluster.installation import Installation, container, pod, refusal
from tests.webhook_cluster.test_admission import wait_allocated

CLASS = "gpu.aliquot.dev"
DEBUGGING = "ephemeralcontainers"


def ask(*, count: int = 1, **capacity: str) -> dict[str, Any]:
    return {"deviceClassName": CLASS, "count": count, "capacity": {"requests": capacity}}


def claim(name: str, namespace: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    """A ResourceClaim as a user writes it; each request is what stands under its name."""
    named = [{"name": f"r{index}", **each} for index, each in enumerate(requests)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": named, **devices}},
    }


def template(name: str, namespace: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    written = claim(name, namespace, *requests, **devices)
    return {**written, "kind": "ResourceClaimTemplate", "spec": {"spec": written["spec"]}}


def config(**parameters: Any) -> dict[str, Any]:
    header = {"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "ShareConfig"}
    return {"config": [{"opaque": {"driver": CLASS, "parameters": header | parameters}}]}


def pod_with(name: str, namespace: str, *claims: dict[str, str], **rest: Any) -> dict[str, Any]:
    """A pod whose container has these claims."""
    main = container()
    main["resources"] = {"claims": [{"name": each["name"]} for each in claims]}
    main |= rest
    return pod(name, namespace, main, resourceClaims=list(claims))


@pytest.mark.parametrize(
    ("requests", "devices", "says"),
    [
        pytest.param(
            [{"exactly": {**ask(), "capacity": {"requests": {"gpu.aliquot.dev/memory": "8Gi"}}}}],
            {},
            "exactly.capacity.requests[gpu.aliquot.dev/memory]: invalid value '8Gi': want 'memory'",
            id="a qualified name",
        ),
        pytest.param([{"exactly": ask(vram="8Gi")}], {}, "memory, cores, shares", id="an unknown capacity"),
        pytest.param([{"exactly": ask(memory="8000")}], {}, "did you mean 8000Mi?", id="no unit"),
        pytest.param(
            [{"exactly": ask(memory="80Gi")}], {}, f"the largest, NVIDIA L4, has {L4_MIB}Mi", id="too large"
        ),
        pytest.param(
            [{"firstAvailable": [{"name": "a", **ask(memory="80Gi")}, {"name": "b", **ask(memory="90Gi")}]}],
            {},
            "no GPU of this cluster is that large",
            id="no alternative fits",
        ),
        pytest.param([{"exactly": ask(cores="101")}], {}, "percentage from 0 to 100", id="cores"),
        pytest.param(
            [{"exactly": ask(memory="1Gi")}],
            config(sharng="mps"),
            "devices.config[0].opaque.parameters.sharng: invalid value 'mps': unknown field",
            id="an unknown field",
        ),
        pytest.param(
            [{"exactly": ask(memory="1Gi")}], config(overQuota="never"), "want one of", id="an unknown value"
        ),
        pytest.param(
            [{"exactly": {"deviceClassName": "nic.example"}}],
            config(x="y"),
            "unknown field",
            id="our config in a claim of another class",
        ),
        pytest.param(
            [{"exactly": ask(memory="1Mi")}] * 9, {}, "at most 8 in one claim", id="too many requests"
        ),
    ],
)
def test_a_bad_claim_or_template_is_refused_in_every_namespace(
    cluster: Cluster, plain_namespace: str, requests: list[dict[str, Any]], devices: dict[str, Any], says: str
) -> None:
    message = refusal(cluster, claim("bad", plain_namespace, *requests, **devices))
    assert "claims.aliquot.dev" in message
    assert says in message
    message = refusal(cluster, template("bad", plain_namespace, *requests, **devices))
    assert "templates.aliquot.dev" in message
    assert says in message
    assert "spec.spec.devices" in message
    assert cluster.list("resourceclaims", plain_namespace) == []


def test_good_ones_are_scheduled(cluster: Cluster, plain_namespace: str) -> None:
    wanted = {
        "firstAvailable": [{"name": "large", **ask(memory="80Gi")}, {"name": "fits", **ask(memory="1Gi")}]
    }
    cluster.api.create(template("good", plain_namespace, wanted, **config(sharing="shim", overQuota="warn")))
    cluster.api.create(pod_with("p", plain_namespace, {"name": "gpu", "resourceClaimTemplateName": "good"}))
    (result,) = wait_allocated(cluster, plain_namespace, "p")
    assert (result["request"], result["consumedCapacity"]["memory"]) == ("r0/fits", "1Gi")


def test_claims_of_other_classes_never_reach_us(
    cluster: Cluster, installation: Installation, plain_namespace: str
) -> None:
    def count() -> str:
        lines = installation.page("webhook", "/metrics").splitlines()
        return "\n".join(line for line in lines if line.startswith("aliquot_webhook_reviews_total"))

    before = count()
    other = {"exactly": {"deviceClassName": "nic.example"}}
    cluster.api.create(claim("nic", plain_namespace, other))
    cluster.api.create(template("nic", plain_namespace, other))
    assert count() == before


PRIVILEGED = {"securityContext": {"privileged": True}}


def test_a_privileged_pod_with_a_hand_written_share_is_refused(
    cluster: Cluster, plain_namespace: str
) -> None:
    cluster.api.create(claim("mine", plain_namespace, {"exactly": ask(memory="1Gi")}))
    cluster.api.create(template("mine", plain_namespace, {"exactly": ask(memory="1Gi")}))
    cluster.api.create(claim("nic", plain_namespace, {"exactly": {"deviceClassName": "nic.example"}}))
    for source in ({"resourceClaimName": "mine"}, {"resourceClaimTemplateName": "mine"}):
        message = refusal(cluster, pod_with("p", plain_namespace, {"name": "gpu", **source}, **PRIVILEGED))
        assert "spec.containers[0].securityContext.privileged" in message
        assert cluster.api.create(pod_with("p", plain_namespace, {"name": "gpu", **source}), dry_run=True)
    nic = {"name": "nic", "resourceClaimName": "nic"}
    assert cluster.api.create(pod_with("p", plain_namespace, nic, **PRIVILEGED))

    forged = pod_with(
        "forged", plain_namespace, {"name": "gpu", "resourceClaimTemplateName": "mine"}, **PRIVILEGED
    )
    forged["metadata"]["annotations"] = {"aliquot.dev/original-request": "{}"}
    assert "privileged" in refusal(cluster, forged)


def test_a_container_must_not_get_one_card_twice(cluster: Cluster, plain_namespace: str) -> None:
    two = [{"exactly": ask(memory="1Gi")}, {"exactly": ask(memory="2Gi")}]
    gpu = {"name": "gpu", "resourceClaimName": "two"}
    cluster.api.create(claim("two", plain_namespace, *two))
    message = refusal(cluster, pod_with("p", plain_namespace, gpu))
    assert "requests r0, r1 of this claim may get one GPU" in message
    assert "distinctAttribute gpu.aliquot.dev/uuid" in message

    one_each = pod_with("p", plain_namespace, gpu)
    one_each["spec"]["containers"][0]["resources"]["claims"][0]["request"] = "r1"
    assert cluster.api.create(one_each, dry_run=True)
    constraint = {"distinctAttribute": "gpu.aliquot.dev/uuid"}
    cluster.api.create(claim("apart", plain_namespace, *two, constraints=[constraint]))
    apart = {"name": "gpu", "resourceClaimName": "apart"}
    assert cluster.api.create(pod_with("q", plain_namespace, apart))


@pytest.mark.parametrize("where", ["limits", "init", "pod"])
def test_the_implicit_resource_of_our_class_is_no_way_round(
    cluster: Cluster, namespace: str, plain_namespace: str, where: str
) -> None:
    asks = {"limits": {"deviceclass.resource.kubernetes.io/gpu.aliquot.dev": "1"}}
    for inside in (namespace, plain_namespace):
        given = pod("p", inside, container())
        if where == "limits":
            given["spec"]["containers"][0]["resources"] = asks
        elif where == "init":
            given["spec"]["initContainers"] = [{**container("i"), "resources": asks}]
        else:
            given["spec"]["resources"] = asks
        message = refusal(cluster, given)
        # The server itself refuses some places; ours is the word where it does not.
        assert "ask for nvidia.com/vgpu" in message or (where == "pod" and "spec.resources" in message)
    assert cluster.list("resourceclaims", plain_namespace) == []


def test_other_pods_pass_the_policy_untouched(cluster: Cluster, plain_namespace: str) -> None:
    other = container()
    other["resources"] = {"limits": {"deviceclass.resource.kubernetes.io/nic.example": "1", "cpu": "1"}}
    assert cluster.api.create(pod("p", plain_namespace, other), dry_run=True)


def test_nobody_debugs_a_share_with_a_privileged_container(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(pod("share", namespace, container(gpumem=1000)))
    cluster.api.create(pod("plain", namespace, container()))

    def debug(name: str, container_name: str, context: dict[str, Any]) -> None:
        debugger = {**container(container_name), "securityContext": context}
        debugger.pop("resources")
        cluster.api.patch(
            "pods", name, {"spec": {"ephemeralContainers": [debugger]}}, namespace, subresource=DEBUGGING
        )

    cluster.wait_for(
        lambda: _is_denied(lambda: debug("share", "a", {"privileged": True})) or None,
        what="the policy to be in force",
    )
    for word in ("SYS_ADMIN", "cap_sys_admin", "ALL"):
        with pytest.raises(ApiError, match="this pod has a share of a GPU"):
            debug("share", "a", {"capabilities": {"add": ["NET_ADMIN", word]}})
    debug("share", "b", {"capabilities": {"add": ["SYS_PTRACE"]}})
    debug("plain", "c", {"privileged": True})


def _is_denied(act: Callable[[], None]) -> bool:
    try:
        act()
    except ApiError as error:
        return "this pod has a share of a GPU" in error.message
    return False


LIMIT = "aliquot.dev/gpu-memory-limit"


def annotate(cluster: Cluster, namespace: str, name: str, value: str | None) -> None:
    cluster.api.patch("pods", name, {"metadata": {"annotations": {LIMIT: value}}}, namespace)


def test_a_resize_is_judged_and_other_updates_are_not(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    cluster.api.create(pod("p", namespace, container("a", gpumem=1000), container("b")))
    cluster.api.create(pod("plain", namespace, container()))
    wait_allocated(cluster, namespace, "p")
    for bad, says in [
        ("8000", "did you mean 8000Mi?"),
        ("b=1Gi", "want one of the pod's GPU containers: a"),
        ("1Ti", f"the largest, NVIDIA L4, has {L4_MIB}Mi"),
        ("much", "want a Kubernetes quantity"),
    ]:
        with pytest.raises(ApiError) as no:
            annotate(cluster, namespace, "p", bad)
        assert "resize.aliquot.dev" in no.value.message
        assert says in no.value.message
        assert f"metadata.annotations[{LIMIT}]" in no.value.message
    annotate(cluster, namespace, "p", "2Gi")
    annotate(cluster, namespace, "p", "a=3Gi")
    annotate(cluster, namespace, "p", None)
    annotate(cluster, namespace, "plain", "anything")

    installation.stop("webhook")
    try:
        with pytest.raises(ApiError, match=r"resize\.aliquot\.dev"):
            annotate(cluster, namespace, "p", "2Gi")
        cluster.api.patch("pods", "p", {"metadata": {"labels": {"a": "b"}}}, namespace)
    finally:
        installation.start("webhook")
        installation.wait_ready()


def test_a_whole_card_has_no_limit_to_change(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(pod("p", namespace, container("a", vgpu=1)))
    wait_allocated(cluster, namespace, "p")
    with pytest.raises(ApiError, match="has a whole GPU"):
        annotate(cluster, namespace, "p", "2Gi")


def test_a_second_apply_of_the_same_manifest_succeeds(cluster: Cluster, namespace: str) -> None:
    manifest = json.dumps(pod("p", namespace, container("a", vgpu=1, gpumem=1000), container("b")))
    assert "created" in cluster.kubectl("apply", "-f", "-", stdin=manifest)
    assert "p" in cluster.kubectl("apply", "-f", "-", stdin=manifest)
    live = cluster.get("pods", "p", namespace)
    assert live["spec"]["containers"][0]["resources"]["claims"] == [{"name": "aliquot", "request": "a"}]


def test_with_the_webhook_dead_other_claims_and_pods_with_claims_go_through(
    cluster: Cluster, installation: Installation, plain_namespace: str
) -> None:
    installation.stop("webhook")
    try:
        nic = {"exactly": {"deviceClassName": "nic.example"}}
        cluster.api.create(claim("nic", plain_namespace, nic))
        cluster.api.create(
            pod_with("p", plain_namespace, {"name": "n", "resourceClaimName": "nic"}, **PRIVILEGED)
        )
        message = refusal(cluster, claim("gpu", plain_namespace, {"exactly": ask(memory="1Gi")}))
        assert "claims.aliquot.dev" in message
    finally:
        installation.start("webhook")
        installation.wait_ready()
