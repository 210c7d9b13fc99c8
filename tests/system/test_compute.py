# SPDX-License-Identifier: Apache-2.0
"""Tenants of one GPU get the part of its time that they asked for, and idle time by their policy."""

import re
import time
from pathlib import Path

import pytest

from aliquot_api import names
from tests.cluster.api import Object
from tests.system.installation import Installation
from tests.system.workloads import Tenant, gpu_pod

LAUNCHER = (Path(__file__).parents[1] / "contract" / "launcher.py").read_text()
SETTLE_S = 4.0
WINDOW_S = 4.0


def launcher(name: str, cores: int, policy: str = "fair") -> Object:
    """A pod that wants all of the GPU's time."""
    pod = gpu_pod(name, vgpu=1, gpumem=1000, gpucores=cores, command=["python3", "-c", LAUNCHER, "k_2ms"])
    pod["metadata"]["annotations"] = {names.ANNOTATION_COMPUTE_POLICY: policy}
    pod["spec"]["containers"][0]["stdin"] = True  # it runs until its input ends
    return pod


def start(tenant: Tenant, pod: Object) -> None:
    """Creates it, and waits for its first launch."""
    name = pod["metadata"]["name"]
    tenant.create(pod)
    tenant.bed.wait_for(
        lambda: (
            tenant.pod(name)["status"]["phase"] == "Running"
            and "ready" in tenant.bed.logs(name, tenant.namespace)
        ),
        what=f"pod {name} to launch",
        timeout_s=60,
    )


def percents(aliquot: Installation, node: str) -> dict[str, float]:
    """The part of the GPU's time that each pod has now, by the driver's books."""

    def used_ns() -> dict[str, int]:
        books = aliquot.books(node)
        hosts = {group["group"]: group["host"] for group in books["groups"]}
        return {
            hosts[process["group"]]: process["gpu_ns"]
            for process in books["processes"]
            if process["alive"] and process["gpu_ns"]
        }

    time.sleep(SETTLE_S)  # the agent's correction and loans
    before, start_s = used_ns(), time.monotonic()
    time.sleep(WINDOW_S)
    after, passed_s = used_ns(), time.monotonic() - start_s
    return {pod: 100 * (ns - before.get(pod, 0)) / 1e9 / passed_s for pod, ns in after.items()}


def metric(aliquot: Installation, node: str, name: str, pod: str) -> float:
    """One figure of a share."""
    [value] = re.findall(
        rf'^aliquot_{name}{{[^}}]*pod="{pod}"[^}}]*}} (\S+)$', aliquot.metrics(node), re.MULTILINE
    )
    return float(value)


def test_tenants_have_their_part_of_a_gpus_time(aliquot: Installation, tenant: Tenant, node: str) -> None:
    start(tenant, launcher("small", 30))
    start(tenant, launcher("large", 70))
    both = percents(aliquot, node)
    whole = sum(both.values())  # less than 100 where the machine itself is too busy for the GPU
    assert {pod: 100 * part / whole for pod, part in both.items()} == {
        "small": pytest.approx(30, rel=0.25),
        "large": pytest.approx(70, rel=0.25),
    }
    assert metric(aliquot, node, "share_gpu_used_seconds_total", "large") > 1
    assert metric(aliquot, node, "share_throttled_seconds_total", "small") > 1

    tenant.delete("large")
    start(tenant, launcher("strict", 20, policy="strict"))
    parts = percents(aliquot, node)
    assert parts["strict"] < 24
    assert parts["small"] > 45
    assert metric(aliquot, node, "share_cores_lent_percent", "strict") == 0
    assert metric(aliquot, node, "share_cores_lent_percent", "small") == 50
