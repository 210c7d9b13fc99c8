# SPDX-License-Identifier: Apache-2.0
"""What admission costs on a real API server, against no webhook, one that does nothing, and one that makes
one API call for each pod; all in one run. Writes build/bench/webhook-cluster.json.

Pods have a scheduler that does not exist: neither scheduler nor kubelet take part. Pods of ours get a claim,
which kube-controller-manager makes; the do-nothing webhook is measured with plain pods, and with pods that
bring the same claim themselves, so that its figure has that work, too.
"""

import base64
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import Figure, at_least, at_most, publish
from tests.cluster import ApiError, Cluster
from tests.webhook_cluster.installation import ACCOUNT, Installation, container, gpu_slice, pod
from tests.webhook_cluster.test_claims import ask, template

REPLICAS: Final = int(os.environ.get("ALIQUOT_BENCH_REPLICAS", "1000"))
CREATES: Final = int(os.environ.get("ALIQUOT_BENCH_CREATES", "200"))
DEADLINE_S: Final = 600
USUAL: Final[dict[str, object]] = {
    "template_grace_s": 3600,
    "api_request_limit_s": 60,
    "clock_skew_s": 30,
    "reservation_s": 60,
    "collect_interval_s": 60,
    "budget_interval_s": 10,
    "in_flight_s": 90,
    "stale_after_s": 300,
    "stale_interval_s": 60,
}
"""The defaults, instead of what tests can wait for."""
NOBODY: Final = {"schedulerName": "nobody"}


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

    def creates(self, namespace: str, containers: list[dict[str, Any]], **spec: Any) -> float:
        """Client's median of CREATES sequential creations, in ms."""
        times = []
        for index in range(CREATES):
            given = pod(f"p{index}", namespace, *containers, **NOBODY, **spec)
            started = time.perf_counter()
            self.cluster.api.create(given)
            times.append((time.perf_counter() - started) * 1e3)
        self.clear(namespace)
        return statistics.median(times)

    def deployment(self, namespace: str, containers: list[dict[str, Any]], **spec: Any) -> float:
        """Pods per second of a Deployment of REPLICAS."""
        labels = {"app": "bench"}
        started = time.perf_counter()
        self.cluster.api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "bench", "namespace": namespace},
                "spec": {
                    "replicas": REPLICAS,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": containers, **NOBODY, **spec},
                    },
                },
            }
        )
        while self.count(namespace) < REPLICAS:
            if time.perf_counter() - started > DEADLINE_S:
                raise TimeoutError(f"{self.count(namespace)} of {REPLICAS} pods after {DEADLINE_S} s")
            time.sleep(0.02)
        taken_s = time.perf_counter() - started
        for event in self.cluster.list("events", namespace):
            if event["reason"] == "FailedCreate":
                self.refused[namespace] = self.refused.get(namespace, 0) + event.get("count", 1)
                sys.stderr.write(f"{namespace}: {event['message'][:300]}\n")
        return REPLICAS / taken_s

    def count(self, namespace: str) -> int:
        """How many pods there are, without reading them."""
        answer = self.cluster.api.raw(f"/api/v1/namespaces/{namespace}/pods?limit=1")
        found = re.search(rb'"remainingItemCount":(\d+)', answer)
        return (int(found[1]) if found else 0) + (
            b'"kind":"PodList"' in answer and answer.count(b'"uid"') > 0
        )

    def clear(self, namespace: str) -> None:
        """Delete the pods and what makes them, and wait."""
        for path in (f"/apis/apps/v1/namespaces/{namespace}/deployments",):
            self.cluster.api.raw(path, method="DELETE")
        self.cluster.wait_for(
            lambda: not self.cluster.list("replicasets", namespace) or None,
            what="no ReplicaSet",
            timeout_s=120,
        )
        self.cluster.api.raw(
            f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0", method="DELETE", timeout_s=300
        )
        self.cluster.wait_for(lambda: self.count(namespace) == 0 or None, what="no pod", timeout_s=300)

    def webhook_mean_ms(self, name: str) -> tuple[float, int]:
        """Sum of seconds and number of calls of a webhook, by the server's own histogram."""
        text = self.cluster.api.raw("/metrics").decode()
        total, number = 0.0, 0
        for line in text.splitlines():
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


@contextmanager
def rivals(bench: Bench, folder: Path) -> Iterator[None]:
    """The two other webhooks, for namespaces labelled bench=nothing and bench=call."""
    host = bench.installation.host
    with socket.create_server((host, 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.bench.webhook.rivals", host, str(port), str(folder)]
    process = subprocess.Popen([*command, str(bench.cluster.kubeconfig)])
    try:
        bench.cluster.wait_for(lambda: (folder / "ca.crt").exists() or None, what="the rivals")
        bundle = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
        for name in ("nothing", "call"):
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
                            "rules": [
                                {
                                    "apiGroups": [""],
                                    "apiVersions": ["v1"],
                                    "operations": ["CREATE"],
                                    "resources": ["pods"],
                                }
                            ],
                            "namespaceSelector": {"matchLabels": {"bench": name}},
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


def measure(bench: Bench) -> list[Figure]:
    """All phases, one after the other."""
    plain, asks = [container()], [container(vgpu=1, gpumem=1000)]
    holds = container()
    holds["resources"] = {"claims": [{"name": "gpu"}]}
    own = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "same"}]}
    opted_in = {"aliquot.dev/inject": "enabled"}
    none = bench.namespace("none", {})
    nothing = bench.namespace("nothing", {"bench": "nothing"})
    call = bench.namespace("call", {"bench": "call"})
    ours = bench.namespace("ours", opted_in)
    budgeted = bench.namespace("budgeted", opted_in)
    bench.cluster.api.create(template("same", nothing, {"exactly": ask(memory="1000Mi", cores="0")}))
    bench.cluster.apply(
        {
            "apiVersion": "aliquot.dev/v1alpha1",
            "kind": "AliquotBudget",
            "metadata": {"name": "main", "namespace": budgeted},
            "spec": {"memory": "100Ti"},
        }
    )
    figures: list[Figure] = []

    # One after the other: the client's median, and the server's mean of the webhook alone.
    for _ in range(2):  # the first round warms everybody up
        sequential: dict[str, tuple[float, float]] = {}
        for name, namespace, containers, webhook in [
            ("none", none, plain, ""),
            ("nothing", nothing, plain, "nothing.bench.example"),
            ("call", call, plain, "call.bench.example"),
            ("ours", ours, asks, "pods.aliquot.dev"),
            ("budgeted", budgeted, asks, "pods.aliquot.dev"),
        ]:
            before = bench.webhook_mean_ms(webhook)
            median = bench.creates(namespace, containers)
            after = bench.webhook_mean_ms(webhook)
            calls = after[1] - before[1]
            sequential[name] = (median, (after[0] - before[0]) / calls if calls else 0.0)
    base = sequential["nothing"][1]
    figures += [
        at_most(
            "webhook's mean by the server, known spec (baseline: does nothing)",
            sequential["ours"][1],
            "ms",
            baseline=base,
            target=1.5 * base,
        ),
        at_most(
            "the same with a budget (baseline: one API call per pod)",
            sequential["budgeted"][1],
            "ms",
            baseline=sequential["call"][1],
            target=1.5 * sequential["call"][1],
        ),
        at_most(
            f"{CREATES} creates, client's median (baseline: does nothing)",
            sequential["ours"][0],
            "ms",
            baseline=sequential["nothing"][0],
            target=1.5 * sequential["nothing"][0],
        ),
        at_most("the same without any webhook", sequential["none"][0], "ms", target=sequential["nothing"][0]),
    ]

    # A Deployment.
    rates: dict[str, float] = {}
    for name, namespace, containers, spec in [
        ("none", none, plain, {}),
        ("nothing", nothing, plain, {}),
        ("nothing, own claims", nothing, [holds], own),
        ("call", call, plain, {}),
        ("budgeted", budgeted, asks, {}),
    ]:
        rates[name] = bench.deployment(namespace, containers, **spec)
        bench.clear(namespace)
    mark = bench.cluster.audit.mark()
    rates["ours"] = bench.deployment(ours, asks)
    requests = bench.cluster.audit.requests(since=mark, user=ACCOUNT, namespace=ours)
    bench.clear(ours)
    what = f"Deployment of {REPLICAS}"
    figures += [
        at_least(
            f"{what} (baseline: does nothing, pods with the same claims)",
            rates["ours"],
            "pods/s",
            baseline=rates["nothing, own claims"],
            target=0.9 * rates["nothing, own claims"],
        ),
        at_least(
            f"{what} (baseline: does nothing, plain pods)",
            rates["ours"],
            "pods/s",
            baseline=rates["nothing"],
            target=0.9 * rates["nothing"],
        ),
        at_least(f"{what}, no webhook", rates["none"], "pods/s", target=rates["nothing"]),
        at_least(
            f"{what}, budgeted (baseline: one API call per pod)",
            rates["budgeted"],
            "pods/s",
            baseline=rates["call"],
            target=0.5 * rates["call"],
        ),
        at_most(f"{what}, API calls of the webhook", len(requests), "", target=1),
    ]

    # Three at once.
    three = [bench.namespace(f"ours-{index}", opted_in) for index in range(3)]
    started = time.perf_counter()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda namespace: bench.deployment(namespace, asks), three))
    together = 3 * REPLICAS / (time.perf_counter() - started)
    figures.append(
        at_least(
            f"three Deployments of {REPLICAS} at once",
            together,
            "pods/s",
            target=0.9 * rates["ours"],
        )
    )
    refused = sum(number for namespace, number in bench.refused.items() if namespace.startswith("ours"))
    figures += [
        at_most("creations refused or lost in all four", refused, "", target=0),
        at_most(
            "the same with a budget (baseline: one API call per pod)",
            bench.refused.get(budgeted, 0),
            "",
            baseline=bench.refused.get(call, 0),
            target=0,
        ),
    ]
    master, *workers = bench.installation.memory_bytes("webhook")
    figures += [
        at_most(f"memory of worker {number} after that", worker / 2**20, "MiB", target=160)
        for number, worker in enumerate(workers, 1)
    ]
    figures.append(at_most("memory of their master", master / 2**20, "MiB", target=96))
    bench.installation.stop("webhook")
    started = time.perf_counter()
    bench.installation.start("webhook")
    while not bench.installation.is_ready("webhook"):
        if time.perf_counter() > started + DEADLINE_S:
            raise TimeoutError("the webhook is not ready")
    figures.append(at_most("start to ready", time.perf_counter() - started, "s", target=2.0))
    return figures


@contextmanager
def a_cluster() -> Iterator[Cluster]:
    """One of its own; TESTBED_ATTACH names one that is up."""
    attached = os.environ.get("TESTBED_ATTACH")
    if attached:
        yield Cluster.attach(attached)
        return
    with Cluster.up(name="bench-webhook", nodes=1) as cluster:
        yield cluster


def main() -> None:
    """Measure, print a table, write the file."""
    with (
        tempfile.TemporaryDirectory() as name,
        a_cluster() as cluster,
    ):
        folder = Path(name)
        installation = Installation(cluster, folder, **USUAL)
        cluster.apply(gpu_slice("node-1", sizes_mib=[23034, 23034], product="NVIDIA L4"))
        try:
            installation.install()
            bench = Bench(cluster, installation)
            with rivals(bench, folder):
                publish("webhook-cluster", measure(bench))
        except ApiError as error:
            sys.exit(f"{error}\n{installation.log('webhook')[-2000:]}")
        finally:
            installation.remove()


if __name__ == "__main__":
    main()
