# SPDX-License-Identifier: Apache-2.0
"""Webhook and controller as processes of this machine, with the permissions that the manifests give them.

Everything of deploy/manifests/webhook.yaml is applied but the Deployment; the configuration calls the process
by its address. No image has to be built, and a test can kill and restart what it likes.
"""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.cluster import ApiError, Cluster

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
NAMESPACE = "aliquot-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:aliquot-webhook"
STOP_S = 30


class Installation:
    """Aliquot's control plane on a cluster."""

    def __init__(self, cluster: Cluster, folder: Path, *, grace_s: float = 3600) -> None:
        self.cluster = cluster
        self._folder = folder
        self._grace_s = grace_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.host, self.port = _address_towards(cluster.server)
        self.manifests = [
            each
            for name in ("webhook.yaml", "deviceclass.yaml")
            for each in yaml.safe_load_all((MANIFESTS / name).read_text())
            if each["kind"] != "Deployment"
        ]
        for each in self.manifests:
            if each["kind"] == "MutatingWebhookConfiguration":
                url = f"https://{self.host}:{self.port}/mutate"
                each["webhooks"][0]["clientConfig"] = {"url": url}

    def install(self) -> None:
        """Apply the manifests, start both processes, wait until the configuration can be used."""
        self.cluster.apply(self.manifests)
        self._kubeconfig()
        self.start("controller")
        self.start("webhook")
        self.wait_ready()

    def remove(self) -> None:
        """Stop the processes."""
        for name in list(self._processes):
            self.stop(name)

    def start(self, name: str) -> None:
        """Start "webhook" or "controller"."""
        command = [sys.executable, "-m", f"aliquot_{name}", "--kubeconfig", str(self._folder / "kubeconfig")]
        command += ["--extra-hosts", self.host, "--template-grace-s", str(self._grace_s)]
        if name == "webhook":
            command += ["--host", self.host, "--port", str(self.port)]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def stop(self, name: str) -> None:
        """Ask it to end, and wait."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)

    def log(self, name: str) -> str:
        """What it has said."""
        return (self._folder / f"{name}.log").read_text()

    def wait_ready(self) -> None:
        """Until a GPU pod gets an answer from us."""
        self.cluster.wait_for(lambda: self._answers() or None, what="the webhook's answer", timeout_s=30)

    def _answers(self) -> bool:
        bundle = self._bundle()
        if bundle is None or not _is_ready(self.host, self.port):
            return False
        secret = self.cluster.get("secrets", "aliquot-webhook-tls", NAMESPACE)
        return bool(bundle == secret["data"]["ca.crt"])

    def _bundle(self) -> str | None:
        configuration = self.cluster.get("mutatingwebhookconfigurations", "aliquot-webhook")
        bundle: str | None = configuration["webhooks"][0]["clientConfig"].get("caBundle")
        return bundle

    def _kubeconfig(self) -> None:
        self.cluster.wait_for(
            lambda: self.cluster.list("serviceaccounts", NAMESPACE) or None, what="service account"
        )
        token = self.cluster.kubectl("create", "token", "aliquot-webhook", "-n", NAMESPACE).strip()
        known = yaml.safe_load(self.cluster.kubeconfig.read_text())
        known["users"] = [{"name": "account", "user": {"token": token}}]
        known["contexts"] = [
            {"name": "account", "context": {"cluster": known["clusters"][0]["name"], "user": "account"}}
        ]
        known["current-context"] = "account"
        (self._folder / "kubeconfig").write_text(yaml.safe_dump(known))


def _address_towards(server: str) -> tuple[str, int]:
    """An address of this machine that the API server can call, and a free port there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((urlsplit(server).hostname, 1))
        host: str = probe.getsockname()[0]
    with socket.create_server((host, 0)) as listener:
        return host, listener.getsockname()[1]


def _is_ready(host: str, port: int) -> bool:
    answer = subprocess.run(
        ["curl", "-sk", f"https://{host}:{port}/readyz"], capture_output=True, check=False, timeout=10
    )
    return answer.stdout == b"ok\n"


def gpu_slice(node: str, *, sizes_mib: list[int], product: str, shares: int = 16) -> dict[str, Any]:
    """A ResourceSlice as an agent publishes it."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"00000-gpu.aliquot.dev-{node}"},
        "spec": {
            "driver": "gpu.aliquot.dev",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{index}",
                    "allowMultipleAllocations": True,
                    "attributes": {
                        "uuid": {"string": f"GPU-{node}-{index}"},
                        "productName": {"string": product},
                        "memoryBytes": {"int": size * 1024**2},
                        "oversubscribed": {"bool": False},
                    },
                    "capacity": {
                        "memory": {
                            "value": f"{size}Mi",
                            "requestPolicy": {
                                "default": f"{size}Mi",
                                "validRange": {"min": "1Mi", "step": "1Mi"},
                            },
                        },
                        "cores": {
                            "value": "100",
                            "requestPolicy": {
                                "default": "0",
                                "validRange": {"min": "0", "max": "100", "step": "1"},
                            },
                        },
                        "shares": {
                            "value": str(shares),
                            "requestPolicy": {
                                "default": "1",
                                "validRange": {"min": "1", "max": str(shares), "step": "1"},
                            },
                        },
                    },
                }
                for index, size in enumerate(sizes_mib)
            ],
        },
    }


def pod(name: str, namespace: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod as a user writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": list(containers), **spec},
    }


def container(name: str = "main", **limits: Any) -> dict[str, Any]:
    """A container with limits vgpu=1, gpumem=8000."""
    resources = {"limits": {f"nvidia.com/{key}": value for key, value in limits.items()}} if limits else {}
    return {
        "name": name,
        "image": "localhost/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "resources": resources,
    }


def refusal(cluster: Cluster, manifest: dict[str, Any]) -> str:
    """What the API server says to a pod that must not be created."""
    try:
        cluster.api.create(manifest)
    except ApiError as error:
        return error.message
    raise AssertionError(f"{json.dumps(manifest)} was created")
