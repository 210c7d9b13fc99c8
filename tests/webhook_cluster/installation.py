# SPDX-License-Identifier: Apache-2.0
"""Webhook and controller as processes of this machine, with the permissions that the chart gives them.

Everything of the chart is applied but the workloads; the Service leads to the
processes by an EndpointSlice of ours. No image has to be built, and a test can kill and restart what it
likes.
"""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.cluster import ApiError, Cluster
from tests.testkit.chart import NAMESPACE, render

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:aliquot-webhook"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
STOP_S = 30
GRACE_S = 5.0
"""At least twice the two times below."""
QUICK = {
    "webhook": {
        "template-grace-s": GRACE_S,
        "api-request-limit-s": 2,
        "clock-skew-s": 0.5,
        "reservation-s": 5,
    },
    "controller": {
        "collect-interval-s": 1,
        "budget-interval-s": 0.5,
        "in-flight-s": 5,
        "reservation-s": 5,
        "lease-s": 3,
        "stale-after-s": 2,
        "stale-interval-s": 0.5,
    },
}
"""Times that a test can wait for."""


class Installation:
    """Aliquot's control plane on a cluster. Processes are called "webhook", "webhook-2", "controller" and so
    on."""

    def __init__(self, cluster: Cluster, folder: Path, **settings: object) -> None:
        self.cluster = cluster
        self._folder = folder
        self._settings = {name.replace("_", "-"): value for name, value in settings.items()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        self.listed: set[str] = set()
        self.host = _address_towards(cluster.server)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.manifests = [
            namespace,
            *(each for each in render() if each["kind"] not in ("Deployment", "DaemonSet")),
        ]
        for each in self.manifests:
            if each["kind"] == "Service":
                del each["spec"]["selector"]
                each["spec"]["ports"] = [{"name": "https", "port": 443, "protocol": "TCP"}]

    def install(self, settings: Mapping[str, object] | None = None) -> None:
        """Apply the manifests, start both processes (the webhook with `settings`), wait until the
        configuration can be used."""
        self.cluster.apply(self.manifests)
        for account in ("webhook", "controller"):
            self._kubeconfig(account)
        self.start("controller")
        self.start("webhook", settings=settings)
        self.wait_ready()

    def remove(self) -> None:
        """Stop the processes."""
        for name in list(self._processes):
            self.stop(name)

    def start(
        self,
        name: str,
        *,
        listed: bool = True,
        settings: Mapping[str, object] | None = None,
        **more: object,
    ) -> None:
        """Start a process with these settings; `listed`: the API server may call it at once."""
        kind = name.partition("-")[0]
        port = self._ports[name] = _free_port(self.host)
        command = [sys.executable, "-m", f"aliquot_{kind}", "--host", self.host, "--port", str(port)]
        command += ["--kubeconfig", str(self._folder / f"{kind}.kubeconfig")]
        own = {key.replace("_", "-"): value for key, value in {**(settings or {}), **more}.items()}
        known = {key: value for key, value in self._settings.items() if key in QUICK[kind]}
        for key, value in (QUICK[kind] | known | own).items():
            command += [f"--{key}", str(value)]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        if kind == "webhook" and listed:
            self.list_endpoints(self.listed | {name})

    def stop(self, name: str, *, drain: Callable[[int], None] | None = None) -> None:
        """Ask it to end, and wait. `drain` waits between the end of its endpoint and that of the process, as
        the pod's preStop hook does."""
        if name in self.listed:
            self.list_endpoints(self.listed - {name})
        if drain is not None:
            drain(30)
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)

    def kill(self, name: str) -> None:
        """As the kernel does when memory is short. Its address stays listed."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)

    def list_endpoints(self, names: set[str]) -> None:
        """The processes that the API server may call."""
        self.listed = names
        self.cluster.apply(
            [
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "name": name,
                        "namespace": NAMESPACE,
                        "labels": {"kubernetes.io/service-name": "aliquot-webhook"},
                    },
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [self.host], "conditions": {"ready": name in names}}],
                    "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
                }
                for name, port in self._ports.items()
                if name.startswith("webhook")
            ]
        )

    def address(self, name: str) -> str:
        """Host and port of a process."""
        return f"{self.host}:{self._ports[name]}"

    def log(self, name: str) -> str:
        """What it has said."""
        log = self._folder / f"{name}.log"
        return log.read_text() if log.exists() else ""

    def page(self, name: str, path: str) -> str:
        """A page of a process."""
        scheme = "https" if name.startswith("webhook") else "http"
        answer = subprocess.run(
            ["curl", "-sk", f"{scheme}://{self.address(name)}{path}"],
            capture_output=True,
            check=False,
            timeout=10,
        )
        return answer.stdout.decode()

    def metric(self, name: str, series: str) -> float:
        """The present value of a process's series, 0 if it has none."""
        for line in self.page(name, "/metrics").splitlines():
            if line.startswith(f"{series} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def memory_bytes(self, name: str) -> list[int]:
        """Resident memory of a process and of each of its children: a webhook's master, its workers."""
        pid = self._processes[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(Path(f"/proc/{each}/statm").read_text().split()[1]) * 4096 for each in (pid, *children)]

    def wait_ready(self) -> None:
        """Until a GPU pod gets an answer from us, and the controller leads."""
        self.cluster.wait_for(lambda: self._answers() or None, what="the webhook's answer", timeout_s=30)
        self.cluster.wait_for(lambda: self._leads() or None, what="a leading controller", timeout_s=30)

    def is_ready(self, name: str) -> bool:
        """As the kubelet asks."""
        return self.page(name, "/readyz") == "ok\n"

    def _leads(self) -> bool:
        controllers = [name for name in self._processes if name.startswith("controller")]
        return not controllers or any(
            "aliquot_controller_leads 1.0" in self.page(name, "/metrics") for name in controllers
        )

    def _answers(self) -> bool:
        if not all(self.is_ready(name) for name in self.listed):
            return False
        if not self._is_called():
            return False
        secret = self.cluster.get("secrets", "aliquot-webhook-tls", NAMESPACE)
        authority = base64.b64decode(secret["data"]["ca.crt"])
        return all(authority in bundle for bundle in self.bundles())

    def _is_called(self) -> bool:
        """Whether the API server finds its way to us (endpoints reach it late)."""
        devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.aliquot.dev"}}]}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "probe", "namespace": NAMESPACE},
            "spec": {"devices": devices},
        }
        try:
            self.cluster.api.create(claim, dry_run=True)
        except ApiError as error:
            return "failed calling webhook" not in error.message
        return True

    def bundles(self) -> list[bytes]:
        """`caBundle` of every webhook, as PEM."""
        return [
            base64.b64decode(each["clientConfig"].get("caBundle", ""))
            for kind in CONFIGURATIONS
            for each in self.cluster.get(kind, "aliquot-webhook")["webhooks"]
        ]

    def _kubeconfig(self, account: str) -> None:
        name = f"aliquot-{account}"
        self.cluster.wait_for(
            lambda: self.cluster.get("serviceaccounts", name, NAMESPACE) or None, what="service account"
        )
        token = self.cluster.kubectl("create", "token", name, "-n", NAMESPACE).strip()
        known = yaml.safe_load(self.cluster.kubeconfig.read_text())
        known["users"] = [{"name": "account", "user": {"token": token}}]
        known["contexts"] = [
            {"name": "account", "context": {"cluster": known["clusters"][0]["name"], "user": "account"}}
        ]
        known["current-context"] = "account"
        (self._folder / f"{account}.kubeconfig").write_text(yaml.safe_dump(known))


def _address_towards(server: str) -> str:
    """An address of this machine that the API server can call."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((urlsplit(server).hostname, 1))
        host: str = probe.getsockname()[0]
    return host


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


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
                        "sharing": {"string": "shim"},
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
