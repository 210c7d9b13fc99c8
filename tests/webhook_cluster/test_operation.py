# SPDX-License-Identifier: Apache-2.0
"""What operators live through: the webhook gone, permissions missing, secrets lost, servers restarted."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster import ApiError, Cluster
from tests.webhook_cluster.installation import MANIFESTS, NAMESPACE, Installation, container, pod, refusal

CLASS = "gpu.aliquot.dev"


def test_with_the_webhook_dead_only_gpu_pods_are_refused(
    cluster: Cluster, installation: Installation, namespace: str, plain_namespace: str
) -> None:
    installation.stop("webhook")
    try:
        assert "pods.aliquot.dev" in refusal(cluster, pod("gpu", namespace, container(vgpu=1)))
        assert cluster.api.create(pod("plain", namespace, container()))
        assert cluster.api.create(pod("gpu", plain_namespace, container(vgpu=1)))
    finally:
        installation.start("webhook")
        installation.wait_ready()
    assert cluster.api.create(pod("gpu", namespace, container(vgpu=1)))


def test_unused_templates_go_and_used_ones_stay(
    cluster: Cluster, namespace: str, templates: Callable[[], list[str]]
) -> None:
    cluster.api.create(pod("stays", namespace, container(gpumem=100)))
    cluster.api.create(pod("goes", namespace, container(gpumem=200)))
    (used,) = [name for name in templates() if "1x100mi" in name]
    cluster.delete("pods", "goes", namespace, grace_s=0)
    cluster.wait_for(lambda: templates() == [used] or None, what="the unused template to be gone")
    cluster.delete("pods", "stays", namespace, grace_s=0)
    cluster.wait_for(lambda: not templates() or None, what="the other one to be gone")

    cluster.api.create(pod("again", namespace, container(gpumem=100)))
    assert templates() == [used]


def test_a_restored_copy_gets_its_template_again(
    cluster: Cluster, namespace: str, templates: Callable[[], list[str]]
) -> None:
    live = cluster.api.create(pod("p", namespace, container(gpumem=100)))
    cluster.delete("pods", "p", namespace, grace_s=0)
    cluster.wait_for(lambda: not templates() or None, what="the template to be gone")
    annotations = live["metadata"]["annotations"]
    live["metadata"] = {"name": "p", "namespace": namespace, "annotations": annotations}
    cluster.api.create(live)

    assert templates() == [live["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]]


def test_a_lost_secret_is_made_again_and_trusted(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    before = cluster.get("secrets", "aliquot-webhook-tls", NAMESPACE)["data"]["ca.crt"]
    cluster.delete("secrets", "aliquot-webhook-tls", NAMESPACE)

    def admitted() -> bool:
        try:
            cluster.api.create(pod("probe", namespace, container(vgpu=1)), dry_run=True)
        except ApiError:
            return False
        return True

    def replaced() -> bool:
        secrets = cluster.list("secrets", NAMESPACE)
        return any(each.get("data", {}).get("ca.crt", before) != before for each in secrets)

    cluster.wait_for(lambda: replaced() or None, what="a new Secret")
    cluster.wait_for(lambda: admitted() or None, what="the new certificate in use", timeout_s=90)


def test_a_wrong_ca_bundle_is_put_right(cluster: Cluster, installation: Installation) -> None:
    configuration = cluster.get("mutatingwebhookconfigurations", "aliquot-webhook")
    del configuration["webhooks"][0]["clientConfig"]["caBundle"]
    webhooks = {"webhooks": configuration["webhooks"]}
    cluster.api.patch("mutatingwebhookconfigurations", "aliquot-webhook", webhooks)

    installation.wait_ready()


def test_a_missing_class_and_missing_permissions_are_named(
    cluster: Cluster, installation: Installation, namespace: str
) -> None:
    def says(words: str) -> None:
        def said() -> bool:
            try:
                cluster.api.create(pod("gpu", namespace, container(gpumem=77)), dry_run=True)
            except ApiError as error:
                return words in error.message
            return False

        cluster.wait_for(lambda: said() or None, what=f"refusal: {words}", timeout_s=90)

    installation.stop("webhook")
    cluster.delete("deviceclasses", CLASS)
    installation.start("webhook")
    try:
        says("DeviceClass gpu.aliquot.dev is missing")
    finally:
        cluster.apply(MANIFESTS / "deviceclass.yaml")
    installation.wait_ready()

    installation.stop("webhook")
    cluster.delete("clusterrolebindings", "aliquot-webhook")
    installation.start("webhook")
    try:
        says("not allowed to read DeviceClass gpu.aliquot.dev; check its ClusterRole")
    finally:
        cluster.apply([each for each in installation.manifests if each["kind"] == "ClusterRoleBinding"])
    cluster.wait_for(lambda: _admits(cluster, namespace) or None, what="an admission", timeout_s=90)


def _admits(cluster: Cluster, namespace: str) -> bool:
    try:
        cluster.api.create(pod("gpu", namespace, container(gpumem=77)), dry_run=True)
    except ApiError:
        return False
    return True


def test_it_goes_on_after_a_restart_of_the_api_server(
    cluster: Cluster, installation: Installation, namespace: str, templates: Callable[[], list[str]]
) -> None:
    cluster.restart("apiserver")
    cluster.wait_ready()
    cluster.wait_for(lambda: _admits(cluster, namespace) or None, what="an admission")
    cluster.api.create(pod("p", namespace, container(gpumem=4321)))

    assert len(templates()) == 1


def test_a_server_without_the_gate_is_told_so(tmp_path: Path) -> None:
    with Cluster.up(name="webhook-off", nodes=1, gates={"DRAConsumableCapacity": False}) as cluster:
        installation = Installation(cluster, tmp_path)
        try:
            installation.install()
            cluster.apply(yaml.safe_load(_LABELLED))
            message = cluster.wait_for(
                lambda: _refusal_or_none(cluster), what="a refusal that names the gate", timeout_s=30
            )
        finally:
            installation.remove()
    assert "DRAConsumableCapacity" in message
    assert "kube-scheduler" in message


_LABELLED = """
apiVersion: v1
kind: Namespace
metadata: {name: team, labels: {aliquot.dev/inject: enabled}}
"""


def _refusal_or_none(cluster: Cluster) -> str | None:
    with pytest.raises(ApiError) as caught:
        cluster.api.create(pod("gpu", "team", container(gpumem=10)))
    message: str = caught.value.message
    return message if "pods.aliquot.dev" in message else None
