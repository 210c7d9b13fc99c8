# SPDX-License-Identifier: Apache-2.0
"""An API server that shows a certificate to our webhook, as docs/webhook.md tells how to set up."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import Cluster, pki
from tests.system.installation import gates, kubernetes_version
from tests.testkit.chart import render
from tests.webhook_cluster.installation import Installation, container, pod

PAGE = Path(__file__).parents[2] / "docs" / "webhook.md"


def documented(key: str, value: str = "") -> dict[str, Any]:
    """The page's example that has this key (with this value)."""
    for block in PAGE.read_text().split("```yaml\n")[1:]:
        found: dict[str, Any] = yaml.safe_load(block.split("```")[0])
        if found.get(key) == value or (not value and key in found):
            return found
    raise AssertionError(f"no {key} {value} in {PAGE}")


def test_only_an_api_server_with_its_certificate_is_answered(tmp_path: Path) -> None:
    clients = tmp_path / "clients"
    pki.create(clients, [pki.Identity(file=who, user=who) for who in ("kube-apiserver", "stranger")])
    kubeconfig = documented("kind", "Config")
    kubeconfig["users"][0]["user"] = {
        "client-certificate": str(clients / "kube-apiserver.crt"),
        "client-key": str(clients / "kube-apiserver.key"),
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    admission = documented("kind", "AdmissionConfiguration")
    for plugin in admission["plugins"]:
        plugin["configuration"]["kubeConfigFile"] = str(tmp_path / "kubeconfig")
    (tmp_path / "admission.yaml").write_text(yaml.safe_dump(admission))
    flags = (f"--admission-control-config-file={tmp_path / 'admission.yaml'}",)
    given = {"client_authority": clients / "ca.crt", "client_names": "kube-apiserver"}

    with Cluster.up(
        name="webhook-clients",
        nodes=1,
        kubernetes=kubernetes_version(),
        gates=gates(),
        api_server_flags=flags,
    ) as cluster:
        installation = Installation(cluster, tmp_path)
        try:
            installation.install(given)
            cluster.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": "team", "labels": {"aliquot.dev/inject": "enabled"}},
                }
            )
            live = cluster.api.create(pod("p", "team", container(gpumem=100)), dry_run=True)
            assert live["spec"]["resourceClaims"]
            assert _post(installation) == "401"
            assert _post(installation, clients / "stranger") == "401"
            assert _post(installation, clients / "kube-apiserver") == "415"  # known; that was no review
        finally:
            installation.remove()


def _post(installation: Installation, client: Path | None = None) -> str:
    """The status that somebody on the network gets."""
    shown = ["--cert", f"{client}.crt", "--key", f"{client}.key"] if client else []
    command = ["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", *shown, "-d", "x"]
    url = f"https://{installation.address('webhook')}/mutate"
    return subprocess.run([*command, url], capture_output=True, text=True, check=True, timeout=30).stdout


def test_the_documented_values_say_who_may_call(cluster: Cluster, installation: Installation) -> None:
    """The test bed enforces no network policies; the server reads them at least."""
    asked = documented("networkPolicy")
    (policy,) = [
        each
        for each in render({**asked, **documented("webhook")})
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "aliquot-webhook"
    ]
    (live,) = cluster.api.apply(policy)
    assert live["spec"]["ingress"][0]["from"] == asked["networkPolicy"]["webhookFrom"]


def test_the_documented_values_ask_for_certificates() -> None:
    (webhook,) = [
        each
        for each in render(documented("webhook"))
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "aliquot-webhook"
    ]
    spec = webhook["spec"]["template"]["spec"]
    (main,) = spec["containers"]
    environment = {each["name"]: each.get("value") for each in main["env"]}
    assert environment["ALIQUOT_CLIENT_NAMES"] == "kube-apiserver"
    (mount,) = main["volumeMounts"]
    assert environment["ALIQUOT_CLIENT_AUTHORITY"] == f"{mount['mountPath']}/ca.crt"
    assert spec["volumes"] == [{"name": mount["name"], "configMap": {"name": "aliquot-webhook-clients"}}]
