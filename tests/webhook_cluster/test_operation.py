# SPDX-License-Identifier: Apache-2.0
"""What operators live through: the webhook gone, permissions missing, secrets lost, servers restarted."""

import base64
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aliquot_webhook import certs
from tests.cluster import ApiError, Cluster
from tests.testkit.chart import NAMESPACE, render
from tests.webhook_cluster.installation import (
    CONFIGURATIONS,
    Installation,
    container,
    pod,
    refusal,
)

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


@pytest.fixture
def admissions(cluster: Cluster, installation: Installation, namespace: str) -> Iterator["Admissions"]:
    """A client that creates GPU pods all the time, on dry runs; none of them may fail."""
    running = Admissions(cluster, namespace)
    running.start()
    yield running
    running.stop()
    assert running.failures == []
    assert running.done > 0


class Admissions:
    """Threads that ask and ask."""

    def __init__(self, cluster: Cluster, namespace: str, threads: int = 3) -> None:
        self.done = 0
        self.failures: list[str] = []
        self._cluster = cluster
        self._namespace = namespace
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"client-{n}") for n in range(threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)

    def wait_for(self, more: int) -> None:
        """Until so many more have been admitted."""
        target = self.done + more
        self._cluster.wait_for(
            lambda: self.done >= target or self.failures or None, what="admissions", timeout_s=60
        )

    def _run(self) -> None:
        given = pod("probe", self._namespace, container(gpumem=321))
        while not self._stopping.is_set():
            try:
                live = self._cluster.api.create(given, dry_run=True)
                assert "resourceClaims" in live["spec"]
                self.done += 1
            except (ApiError, AssertionError) as error:
                self.failures.append(f"{time.time():.3f} {error}")
                return


def authority(cluster: Cluster) -> bytes:
    """The certificate of our own authority, as PEM."""
    return base64.b64decode(cluster.get("secrets", "aliquot-webhook-tls", NAMESPACE)["data"]["ca.crt"])


def test_a_lost_secret_comes_back_and_nobody_notices(cluster: Cluster, admissions: Admissions) -> None:
    before = authority(cluster)
    # Not waited for: it may be back before anybody sees that it was gone.
    cluster.delete("secrets", "aliquot-webhook-tls", NAMESPACE, timeout_s=None)
    cluster.wait_for(
        lambda: [each["metadata"]["name"] for each in cluster.list("secrets", NAMESPACE)] or None,
        what="the Secret",
    )
    assert authority(cluster) == before
    admissions.wait_for(30)


def test_a_new_authority_is_trusted_before_it_is_served(
    cluster: Cluster, installation: Installation, admissions: Admissions
) -> None:
    """What an administrator does whose key was stolen."""
    before, log = authority(cluster), installation.log("webhook").count("serving certificate")
    cluster.api.patch("secrets", "aliquot-webhook-tls", {"data": {"ca.key": ""}}, NAMESPACE)
    cluster.wait_for(lambda: authority(cluster) != before or None, what="a new authority")
    cluster.wait_for(
        lambda: installation.log("webhook").count("serving certificate") > log or None,
        what="the new certificate to be served",
    )
    assert all(authority(cluster) in bundle for bundle in installation.bundles())
    admissions.wait_for(30)


class CertManager:
    """What cert-manager, its cainjector and the kubelet do with what the chart asks of them (the programs
    themselves are not here): a Secret of kind kubernetes.io/tls, caBundle by annotation, a mounted folder."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        rendered = render({"certManager": {"enabled": True}}, served=["cert-manager.io/v1"])
        (self._certificate,) = [each for each in rendered if each["kind"] == "Certificate"]
        self._annotations = {
            each["kind"]: each["metadata"]["annotations"]
            for each in rendered
            if each["kind"].endswith("WebhookConfiguration")
        }

    @property
    def hosts(self) -> list[str]:
        """The names that the chart wants in the certificate."""
        hosts: list[str] = self._certificate["spec"]["dnsNames"]
        return hosts

    def issue(self, bundle: certs.Bundle) -> None:
        """Write the Secret anew; the kubelet brings it into the pod, all files in one rename."""
        parts = {"ca.crt": bundle.authority, "tls.crt": bundle.certificate, "tls.key": bundle.key}
        name, namespace = self._certificate["spec"]["secretName"], self._certificate["metadata"]["namespace"]
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "annotations": {"cert-manager.io/certificate-name": self._certificate["metadata"]["name"]},
            },
            "data": {key: base64.b64encode(content).decode() for key, content in parts.items()},
        }
        self._cluster.delete("secrets", name, namespace)
        live = self._cluster.api.create(secret)
        version = self._folder / f"..{live['metadata']['resourceVersion']}"
        version.mkdir()
        for key, content in live["data"].items():
            (version / key).write_bytes(base64.b64decode(content))
            if not (self._folder / key).is_symlink():
                (self._folder / key).symlink_to(f"..data/{key}")
        (self._folder / "..new").symlink_to(version.name)
        (self._folder / "..new").rename(self._folder / "..data")

    def inject(self) -> None:
        """caBundle from the Secret of the certificate that a configuration's annotation names."""
        for kind, annotations in self._annotations.items():
            namespace, name = annotations["cert-manager.io/inject-ca-from"].split("/")
            assert name == self._certificate["metadata"]["name"]
            secret = self._cluster.get("secrets", self._certificate["spec"]["secretName"], namespace)
            plural = f"{kind.lower()}s"
            webhooks = self._cluster.get(plural, "aliquot-webhook")["webhooks"]
            for each in webhooks:
                each["clientConfig"]["caBundle"] = secret["data"]["ca.crt"]
            self._cluster.api.patch(plural, "aliquot-webhook", {"webhooks": webhooks})


def test_certificates_that_somebody_else_renews(
    cluster: Cluster, installation: Installation, namespace: str, tmp_path: Path
) -> None:
    manager = CertManager(cluster, tmp_path)
    first = certs.renewed(None, hosts=manager.hosts, now=datetime.now(UTC))
    assert first is not None
    second = certs.renewed(first, hosts=[*manager.hosts, "another"], now=datetime.now(UTC))
    assert second is not None
    manager.issue(first)
    installation.stop("controller")
    installation.start("controller", keep_ca_bundle="false")
    installation.stop("webhook")
    manager.inject()
    installation.start("webhook-3", certificate_folder=tmp_path)
    try:
        cluster.wait_for(lambda: _admits(cluster, namespace) or None, what="an admission")
        manager.issue(second)
        cluster.wait_for(
            lambda: installation.log("webhook-3").count("serving certificate") == 2 or None,
            what="the renewed certificate",
        )
        assert _admits(cluster, namespace)
        assert set(installation.bundles()) == {first.authority}
    finally:
        installation.stop("webhook-3")
        installation.stop("controller")
        installation.start("controller")
        installation.start("webhook")
        installation.wait_ready()


def test_the_cert_manager_variant_says_what_the_webhook_needs() -> None:
    rendered = render({"certManager": {"enabled": True}}, served=["cert-manager.io/v1"])
    configurations = [each for each in rendered if each["kind"].endswith("WebhookConfiguration")]
    wanted = {"cert-manager.io/inject-ca-from": "aliquot-system/aliquot-webhook"}
    assert [each["metadata"]["annotations"] for each in configurations] == [wanted, wanted]
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in rendered
        if each["kind"] == "Deployment"
    }
    (webhook,) = pods["aliquot-webhook"]["containers"]
    folder = {each["name"]: each.get("value") for each in webhook["env"]}["ALIQUOT_CERTIFICATE_FOLDER"]
    assert {each["mountPath"] for each in webhook["volumeMounts"]} == {folder}
    (certificate,) = [each for each in rendered if each["kind"] == "Certificate"]
    (volume,) = pods["aliquot-webhook"]["volumes"]
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    assert certificate["spec"]["dnsNames"][0] == "aliquot-webhook.aliquot-system.svc"
    (controller,) = pods["aliquot-controller"]["containers"]
    assert {"name": "ALIQUOT_KEEP_CA_BUNDLE", "value": "false"} in controller["env"]


def test_a_rolling_update_under_load_fails_no_admission(
    cluster: Cluster, installation: Installation, admissions: Admissions
) -> None:
    """As the Deployment does it: a new one is ready before an old one goes, and the old one hears of its end
    after it is out of the endpoints."""
    installation.start("webhook-2", listed=False)
    cluster.wait_for(lambda: installation.is_ready("webhook-2") or None, what="the new one to be ready")
    admissions.wait_for(20)
    installation.list_endpoints({"webhook", "webhook-2"})
    admissions.wait_for(20)
    installation.stop("webhook", drain=admissions.wait_for)
    admissions.wait_for(20)
    installation.start("webhook", listed=False)
    cluster.wait_for(lambda: installation.is_ready("webhook") or None, what="the other one to be ready")
    installation.list_endpoints({"webhook", "webhook-2"})
    admissions.wait_for(20)
    installation.stop("webhook-2", drain=admissions.wait_for)
    admissions.wait_for(20)


def test_with_every_replica_killed_only_gpu_pods_are_refused(
    cluster: Cluster, installation: Installation, namespace: str, plain_namespace: str
) -> None:
    """Killed without a word, their addresses still listed."""
    installation.start("webhook-2")
    cluster.wait_for(lambda: installation.is_ready("webhook-2") or None, what="the second one")
    for name in ("webhook", "webhook-2"):
        installation.kill(name)
    try:
        for _ in range(4):
            assert "pods.aliquot.dev" in refusal(cluster, pod("gpu", namespace, container(vgpu=1)))
        assert cluster.api.create(pod("plain", namespace, container()))
        assert cluster.api.create(pod("gpu", plain_namespace, container(vgpu=1)))
    finally:
        installation.list_endpoints(set())
        installation.start("webhook")
        installation.wait_ready()
    assert cluster.api.create(pod("gpu", namespace, container(vgpu=1)))


def test_another_controller_takes_over(
    cluster: Cluster, installation: Installation, namespace: str, templates: Callable[[], list[str]]
) -> None:
    installation.start("controller-2", identity="second")
    installation.kill("controller")
    try:
        cluster.wait_for(
            lambda: "aliquot_controller_leads 1.0" in installation.page("controller-2", "/metrics") or None,
            what="the second one to lead",
        )
        cluster.api.create(pod("p", namespace, container(gpumem=100)))
        cluster.delete("pods", "p", namespace, grace_s=0)
        cluster.wait_for(lambda: not templates() or None, what="the template to be gone")
    finally:
        installation.start("controller", identity="first")
        installation.stop("controller-2")
        installation.wait_ready()


def test_wrong_ca_bundles_are_put_right(cluster: Cluster, installation: Installation) -> None:
    for kind in CONFIGURATIONS:
        configuration = cluster.get(kind, "aliquot-webhook")
        for each in configuration["webhooks"]:
            del each["clientConfig"]["caBundle"]
        cluster.api.patch(kind, "aliquot-webhook", {"webhooks": configuration["webhooks"]})

    cluster.wait_for(lambda: all(installation.bundles()) or None, what="every caBundle")
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
        cluster.apply([each for each in installation.manifests if each["kind"] == "DeviceClass"])
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
