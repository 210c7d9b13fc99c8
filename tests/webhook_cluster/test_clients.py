# SPDX-License-Identifier: Apache-2.0
"""An API server that shows a certificate to our webhook, as docs/webhook.md tells how to set up."""

import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import Cluster, pki
from tests.webhook_cluster.installation import MANIFESTS, NAMESPACE, Installation, container, pod

PAGE = MANIFESTS.parents[1] / "docs" / "webhook.md"
SERVICE = f"aliquot-webhook.{NAMESPACE}.svc"


def documented(kind: str) -> dict[str, Any]:
    """The page's example of this kind."""
    for block in PAGE.read_text().split("```yaml\n")[1:]:
        found: dict[str, Any] = yaml.safe_load(block.split("```")[0])
        if found["kind"] == kind:
            return found
    raise AssertionError(f"no {kind} in {PAGE}")


def test_only_an_api_server_with_its_certificate_is_answered(tmp_path: Path) -> None:
    clients = tmp_path / "clients"
    pki.create(clients, [pki.Identity(file=who, user=who) for who in ("kube-apiserver", "stranger")])
    kubeconfig = documented("Config")
    kubeconfig["users"][0]["user"] = {
        "client-certificate": str(clients / "kube-apiserver.crt"),
        "client-key": str(clients / "kube-apiserver.key"),
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    admission = documented("AdmissionConfiguration")
    for plugin in admission["plugins"]:
        plugin["configuration"]["kubeConfigFile"] = str(tmp_path / "kubeconfig")
    (tmp_path / "admission.yaml").write_text(yaml.safe_dump(admission))
    flags = (f"--admission-control-config-file={tmp_path / 'admission.yaml'}",)
    given = {"client_authority": clients / "ca.crt", "client_names": "kube-apiserver"}

    with Cluster.up(name="webhook-clients", nodes=1, api_server_flags=flags) as cluster:
        installation = Installation(cluster, tmp_path)
        try:
            installation.install(**given)
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


def test_the_documented_network_policy_is_one(cluster: Cluster, installation: Installation) -> None:
    """The test bed enforces none; the server reads it at least, and it is for our pods and port."""
    policy = cluster.api.create(documented("NetworkPolicy"), dry_run=True)
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "aliquot-webhook"}
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == {"https"}
