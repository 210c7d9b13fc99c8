# SPDX-License-Identifier: Apache-2.0
"""A cluster with our webhook and its rivals on it, and how pods are created there and timed."""

import base64
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cluster import Cluster
from tests.webhook_cluster.installation import Installation, pod

DEADLINE_S: Final = 600
RIVALS: Final = ("nothing", "call")
LABEL: Final = "bench"
"""On the namespaces of rivals."""
NOBODY: Final = {"schedulerName": "nobody"}
PODS: Final = "/api/v1/namespaces/{}/pods"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


@dataclass(kw_only=True)
class Setting:
    """Pods of one kind in one namespace, and what their creation took."""

    namespace: str
    containers: list[dict[str, Any]]
    webhook: str = ""
    """Whose mean counts."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    claims: int = 0
    """That come with each pod."""
    created: int = 0
    client_ms: list[float] = field(default_factory=list)
    webhook_ms: float = 0.0
    calls: int = 0

    @property
    def client(self) -> float:
        """The client's median of a creation, in ms."""
        return statistics.median(self.client_ms)

    @property
    def mean(self) -> float:
        """The server's mean of a call of the webhook, in ms."""
        return self.webhook_ms / self.calls


@dataclass(frozen=True, slots=True)
class Rates:
    """Pods per second of a Deployment."""

    pods: float
    """Until the last pod was created; claims may lag behind by thousands."""
    complete: float
    """Until the last pod had its claims as well."""


class Bench:
    """A cluster with everything on it."""

    def __init__(self, cluster: Cluster, installation: Installation) -> None:
        self.cluster = cluster
        self.installation = installation
        self.refused: dict[str, int] = {}
        """Creations of a Deployment's pods that failed (its controller tries again), by namespace."""

    def namespace(self, name: str, labels: Mapping[str, str]) -> str:
        """A namespace, ready for pods; its name is made unique."""
        name = f"{name}-{os.getpid()}"
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}
        )
        self.cluster.wait_for(
            lambda: self.cluster.list("serviceaccounts", name) or None, what="the default service account"
        )
        return name

    def create(self, setting: Setting, number: int, *, counts: bool) -> None:
        """Create pods one after the other; `counts`: add what it took. Ends when their claims are made."""
        total_ms, calls = self._webhook(setting.webhook)
        for _ in range(number):
            setting.created += 1
            given = pod(
                f"p{setting.created}", setting.namespace, *setting.containers, **NOBODY, **setting.spec
            )
            started = time.perf_counter()
            self.cluster.api.create(given)
            if counts:
                setting.client_ms.append((time.perf_counter() - started) * 1e3)
        if counts:
            later_ms, later = self._webhook(setting.webhook)
            setting.webhook_ms += later_ms - total_ms
            setting.calls += later - calls
        self.cluster.wait_for(
            lambda: self.count(CLAIMS, setting.namespace) >= setting.claims * setting.created or None,
            what="the pods' claims",
            timeout_s=DEADLINE_S,
        )

    def deployment(self, setting: Setting, replicas: int) -> Rates:
        """How fast a Deployment comes into being."""
        labels, namespace = {"app": "bench"}, setting.namespace
        started = time.perf_counter()
        self.cluster.api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "bench", "namespace": namespace},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": setting.containers, **NOBODY, **setting.spec},
                    },
                },
            }
        )
        taken_s = []
        for path, number in ((PODS, replicas), (CLAIMS, replicas * setting.claims)):
            while self.count(path, namespace) < number:
                if time.perf_counter() - started > DEADLINE_S:
                    raise TimeoutError(f"{self.count(path, namespace)} of {number} after {DEADLINE_S} s")
                time.sleep(0.02)
            taken_s.append(time.perf_counter() - started)
        for event in self.cluster.list("events", namespace):
            if event["reason"] == "FailedCreate":
                self.refused[namespace] = self.refused.get(namespace, 0) + event.get("count", 1)
                sys.stderr.write(f"{namespace}: {event['message'][:300]}\n")
        return Rates(pods=replicas / taken_s[0], complete=replicas / taken_s[1])

    def count(self, path: str, namespace: str) -> int:
        """How many objects there are, without reading them."""
        answer = self.cluster.api.raw(f"{path.format(namespace)}?limit=1")
        found = re.search(rb'"remainingItemCount":(\d+)', answer)
        return (int(found[1]) if found else 0) + (b'"uid"' in answer)

    def clear(self, namespace: str) -> None:
        """Delete pods, claims and what makes them, and wait."""
        self.cluster.api.raw(f"/apis/apps/v1/namespaces/{namespace}/deployments", method="DELETE")
        self.cluster.wait_for(
            lambda: not self.cluster.list("replicasets", namespace) or None,
            what="no ReplicaSet",
            timeout_s=120,
        )
        for path in (PODS, CLAIMS):
            self.cluster.api.raw(
                f"{path.format(namespace)}?gracePeriodSeconds=0", method="DELETE", timeout_s=300
            )
        self.cluster.wait_for(
            lambda: self.count(PODS, namespace) + self.count(CLAIMS, namespace) == 0 or None,
            what="neither pod nor claim",
            timeout_s=300,
        )

    def _webhook(self, name: str) -> tuple[float, int]:
        """Sum of milliseconds and number of calls of a webhook, by the server's own histogram."""
        total, number = 0.0, 0
        if not name:
            return total, number
        for line in self.cluster.api.raw("/metrics").decode().splitlines():
            if (
                line.startswith("apiserver_admission_webhook_admission_duration_seconds_")
                and f'"{name}"' in line
            ):
                value = float(line.rsplit(" ", 1)[1])
                if "_seconds_sum{" in line:
                    total += value
                elif "_seconds_count{" in line:
                    number += int(value)
        return total * 1e3, number


def leave_rivals_alone(manifests: Sequence[dict[str, Any]]) -> None:
    """Our checks of what is written by hand are not called for claims and pods of rivals."""
    for each in manifests:
        if each["kind"] == "ValidatingWebhookConfiguration":
            for webhook in each["webhooks"]:
                selector = webhook.setdefault("namespaceSelector", {})
                selector.setdefault("matchExpressions", []).append({"key": LABEL, "operator": "DoesNotExist"})


@contextmanager
def rivals(bench: Bench, folder: Path) -> Iterator[None]:
    """The other webhooks, for namespaces labelled bench=nothing and bench=call."""
    host = bench.installation.host
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.bench.webhook.rivals", host, str(port), str(folder)]
    process = subprocess.Popen([*command, str(bench.cluster.kubeconfig)])
    try:
        bench.cluster.wait_for(lambda: (folder / "ca.crt").exists() or None, what="the rivals")
        bundle = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
        }
        for name in RIVALS:
            bench.cluster.apply(
                {
                    "apiVersion": "admissionregistration.k8s.io/v1",
                    "kind": "MutatingWebhookConfiguration",
                    "metadata": {"name": f"bench-{name}"},
                    "webhooks": [
                        {
                            "name": f"{name}.bench.example",
                            "admissionReviewVersions": ["v1"],
                            "clientConfig": {"url": f"https://{host}:{port}/{name}", "caBundle": bundle},
                            "rules": [rule],
                            "namespaceSelector": {"matchLabels": {LABEL: name}},
                            "failurePolicy": "Fail",
                            "sideEffects": "NoneOnDryRun",
                        }
                    ],
                }
            )
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
