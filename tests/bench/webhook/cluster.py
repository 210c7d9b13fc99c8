# SPDX-License-Identifier: Apache-2.0
"""What admission costs on a real API server, against no webhook, one that does nothing, and one that makes
one API call for each pod; all in one run. Writes build/bench/webhook-cluster.json.

Pods have a scheduler that does not exist: neither scheduler nor kubelet take part. A pod of ours has a claim,
which kube-controller-manager makes and writes into the pod's status, on the same two cores and while the next
pod is created: twice the work of a plain pod for the API server, and not the webhook's. So the rivals are
measured with pods that bring the same claim themselves, too: that comparison isolates the webhook. Whatever
plain pods reach beyond it, no webhook can reach with claims.

A Deployment's pods are counted until the last one has its claim. Pods alone say little: the faster they are
created, the more claims kube-controller-manager has still to make when the last one is there, and how many
is a matter of who got the processors first. They are shown beside it.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import Figure, at_least, at_most, context, publish
from tests.bench.webhook.bed import (
    DEADLINE_S,
    LABEL,
    RIVALS,
    Bench,
    Rates,
    Setting,
    leave_rivals_alone,
    rivals,
)
from tests.cluster import ApiError, Cluster
from tests.webhook_cluster.installation import ACCOUNT, Installation, container, gpu_slice
from tests.webhook_cluster.test_claims import template

REPLICAS: Final = int(os.environ.get("ALIQUOT_BENCH_REPLICAS", "1000"))
CREATES: Final = int(os.environ.get("ALIQUOT_BENCH_CREATES", "200"))
TURNS: Final = (
    *("none", "nothing", "call"),
    *("nothing +", "ours", "ours", "nothing +"),
    *("call +", "budgeted", "budgeted", "call +"),
)
"""Deployments in this order: the server's heap and etcd grow from one to the next."""
ROUNDS: Final = 4
"""The creations take turns, so that what else the machine does meets everybody."""
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


def settings(bench: Bench) -> dict[str, Setting]:
    """Whose pods are created, by a short name; "… +" bring claims of their own."""
    plain, asks, holds = [container()], [container(vgpu=1, gpumem=1000)], container()
    holds["resources"] = {"claims": [{"name": "gpu"}]}
    own = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "same"}]}
    found = {"none": Setting(namespace=bench.namespace("none", {}), containers=plain)}
    opted_in = {"aliquot.dev/inject": "enabled"}
    ours = {name: bench.namespace(name, opted_in) for name in ("ours", "budgeted")}
    same = claim_spec(bench, ours["ours"], asks)
    for claims, name in enumerate(RIVALS, 1):  # what the second one's call makes is a claim, too
        webhook = f"{name}.bench.example"
        namespace = bench.namespace(name, {LABEL: name})
        found[name] = Setting(namespace=namespace, containers=plain, webhook=webhook)
        namespace = bench.namespace(f"{name}-claims", {LABEL: name})
        bench.cluster.api.create({**template("same", namespace), "spec": {"spec": same}})
        found[f"{name} +"] = Setting(
            namespace=namespace, containers=[holds], webhook=webhook, spec=own, claims=claims
        )
    for name, namespace in ours.items():
        found[name] = Setting(namespace=namespace, containers=asks, webhook="pods.aliquot.dev", claims=1)
    bench.cluster.apply(
        {
            "apiVersion": "aliquot.dev/v1alpha1",
            "kind": "AliquotBudget",
            "metadata": {"name": "main", "namespace": found["budgeted"].namespace},
            "spec": {"memory": "100Ti"},
        }
    )
    return found


def claim_spec(bench: Bench, namespace: str, containers: list[dict[str, Any]]) -> object:
    """Spec of the claim that our webhook gives to such a pod."""
    bench.create(Setting(namespace=namespace, containers=containers, claims=1), 1, counts=False)
    (made,) = bench.cluster.list("resourceclaimtemplates", namespace)
    bench.clear(namespace)
    return made["spec"]["spec"]


def mean_of(runs: list[Rates]) -> Rates:
    """The rates of all runs together."""
    return Rates(
        pods=statistics.harmonic_mean(run.pods for run in runs),
        complete=statistics.harmonic_mean(run.complete for run in runs),
    )


def one_after_the_other(bench: Bench, by: dict[str, Setting]) -> list[Figure]:
    """The client's median, and the server's mean of the webhook alone."""
    for number in range(ROUNDS + 1):  # the first round warms everybody up
        for setting in by.values():
            bench.create(setting, max(1, CREATES // ROUNDS), counts=number > 0)
    for setting in by.values():
        bench.clear(setting.namespace)
    ours, budgeted, same = by["ours"], by["budgeted"], "pods with the same claims"
    return [
        at_most(
            f"webhook's mean by the server, known spec (baseline: does nothing, {same})",
            ours.mean,
            "ms",
            baseline=by["nothing +"].mean,
            target=1.5 * by["nothing +"].mean,
        ),
        context(
            "the same (baseline: does nothing, plain pods)", ours.mean, "ms", baseline=by["nothing"].mean
        ),
        at_most(
            f"the same with a budget (baseline: one API call per pod, {same})",
            budgeted.mean,
            "ms",
            baseline=by["call +"].mean,
            target=1.5 * by["call +"].mean,
        ),
        context(
            "the same (baseline: one API call per pod, plain pods)",
            budgeted.mean,
            "ms",
            baseline=by["call"].mean,
        ),
        at_most(
            f"{CREATES} creates, client's median (baseline: does nothing, {same})",
            ours.client,
            "ms",
            baseline=by["nothing +"].client,
            target=1.5 * by["nothing +"].client,
        ),
        at_most(
            "the same (baseline: does nothing, plain pods)",
            ours.client,
            "ms",
            baseline=by["nothing"].client,
            target=1.5 * by["nothing"].client,
        ),
        context("the same without any webhook", by["none"].client, "ms"),
    ]


def deployments(bench: Bench, by: dict[str, Setting]) -> list[Figure]:
    """A Deployment of each, in turns where they are compared, then three of ours at once."""
    runs: dict[str, list[Rates]] = {name: [] for name in by}
    requests = []
    for name in TURNS:
        namespace, mark = by[name].namespace, bench.cluster.audit.mark()
        runs[name].append(bench.deployment(by[name], REPLICAS))
        if name == "ours":
            requests += bench.cluster.audit.requests(since=mark, user=ACCOUNT, namespace=namespace)
        bench.clear(namespace)
    rates = {name: mean_of(each) for name, each in runs.items()}
    three = [
        Setting(
            namespace=bench.namespace(f"ours-{index}", {"aliquot.dev/inject": "enabled"}),
            containers=by["ours"].containers,
            claims=1,
        )
        for index in range(3)
    ]
    started = time.perf_counter()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda setting: bench.deployment(setting, REPLICAS), three))
    together = 3 * REPLICAS / (time.perf_counter() - started)
    for setting in three:
        bench.clear(setting.namespace)
    refused = sum(bench.refused.get(setting.namespace, 0) for setting in (by["ours"], *three))
    what, does_nothing = f"Deployment of {REPLICAS}", "baseline: does nothing"
    calls, same = "baseline: one API call per pod", "pods with the same claims"
    ours, budgeted, nothing, call = (rates[name] for name in ("ours", "budgeted", "nothing +", "call +"))
    return [
        at_least(
            f"{what} and their claims ({does_nothing}, {same})",
            ours.complete,
            "pods/s",
            baseline=nothing.complete,
            target=0.9 * nothing.complete,
        ),
        context(f"{what}, pods alone ({does_nothing}, {same})", ours.pods, "pods/s", baseline=nothing.pods),
        context(
            f"{what}, pods alone ({does_nothing}, plain pods)",
            ours.pods,
            "pods/s",
            baseline=rates["nothing"].pods,
        ),
        context(f"{what}, no webhook, plain pods", rates["none"].pods, "pods/s"),
        at_least(
            f"{what} and their claims, budgeted ({calls}, {same})",
            budgeted.complete,
            "pods/s",
            baseline=call.complete,
            target=call.complete / 1.5,
        ),
        context(
            f"{what}, pods alone, budgeted ({calls}, {same})", budgeted.pods, "pods/s", baseline=call.pods
        ),
        context(
            f"{what}, pods alone, budgeted ({calls}, plain pods)",
            budgeted.pods,
            "pods/s",
            baseline=rates["call"].pods,
        ),
        at_most(f"{what}, API calls of the webhook", len(requests), "", target=1),
        at_least(f"three of {REPLICAS} at once", together, "pods/s", target=0.9 * ours.complete),
        at_most("creations refused or lost in all four", refused, "", target=0),
        at_most(
            "the same with a budget (baseline: one API call per pod)",
            bench.refused.get(by["budgeted"].namespace, 0),
            "",
            baseline=bench.refused.get(by["call +"].namespace, 0),
            target=0,
        ),
    ]


def memory_and_start(bench: Bench) -> list[Figure]:
    """What the webhook holds after all that, and how long it takes to come back."""
    master, *workers = bench.installation.memory_bytes("webhook")
    figures = [
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
        leave_rivals_alone(installation.manifests)
        cluster.apply(gpu_slice("node-1", sizes_mib=[23034, 23034], product="NVIDIA L4"))
        try:
            installation.install()
            bench = Bench(cluster, installation)
            with rivals(bench, folder):
                by = settings(bench)
                figures = [*one_after_the_other(bench, by), *deployments(bench, by), *memory_and_start(bench)]
            publish("webhook-cluster", figures)
        except ApiError as error:
            sys.exit(f"{error}\n{installation.log('webhook')[-2000:]}")
        finally:
            installation.remove()


if __name__ == "__main__":
    main()
