# SPDX-License-Identifier: Apache-2.0
"""Pods come and go at random while one thing after another breaks; afterwards nothing of it is left.

ALIQUOT_SOAK_S is how long (the long form is 600), ALIQUOT_SOAK_SEED repeats a run.
"""

import os
import random
import time
from collections.abc import Callable

import pytest

from aliquot_api import names
from tests.cluster.api import ApiError, Object
from tests.cluster.cluster import Cluster
from tests.cluster.system import TestbedError
from tests.system.installation import Installation
from tests.system.workloads import Tenant, gpu_pod

SOAK_S = float(os.environ.get("ALIQUOT_SOAK_S", "90"))
SEED = int(os.environ.get("ALIQUOT_SOAK_SEED", "20261130"))
FAULT_EVERY_S = 9.0
STEADY = 3
MOST_PODS = 8
PATIENCE_S = 180

pytestmark = [pytest.mark.faults, pytest.mark.timeout(SOAK_S + 600)]


class Soak:
    """One run."""

    def __init__(self, aliquot: Installation, tenant: Tenant, node: str) -> None:
        self.aliquot, self.bed, self.tenant, self.node = aliquot, aliquot.bed, tenant, node
        self.random = random.Random(SEED)
        self.alive: list[str] = []
        self.made = 0
        self.faults: list[str] = []

    def step(self) -> None:
        """One pod comes or goes."""
        if len(self.alive) < MOST_PODS and self.random.random() < 0.6:
            name = f"soak-{self.made}"
            memory = self.random.choice((700, 800, 1000, 1500))
            self.tenant.create(gpu_pod(name, vgpu=1, gpumem=memory))
            self.made += 1
            self.alive.append(name)
        elif self.alive:
            name = self.alive.pop(self.random.randrange(len(self.alive)))
            grace_s = self.random.choice((0, None))  # at once, and as people do it
            self.bed.delete("pods", name, self.tenant.namespace, grace_s=grace_s, timeout_s=None)

    def break_something(self) -> None:
        """The next fault, each kind in turn, in an order of chance."""
        kinds: list[Callable[[], None]] = [
            self.kill_agent,
            self.restart_kubelet,
            self.restart_containerd,
            self.freeze_server,
            self.delete_slice,
            self.sicken_gpu,
            self.remove_cdi_specs,
            self.spoil_checkpoint_of_nobody,
        ]
        if len(self.faults) % len(kinds) == 0:
            self.order = self.random.sample(kinds, len(kinds))
        fault = self.order[len(self.faults) % len(kinds)]
        self.faults.append(fault.__name__)
        fault()

    def kill_agent(self) -> None:
        self.aliquot.kill_agent(self.node)

    def restart_kubelet(self) -> None:
        self.bed.restart(f"{self.node}/kubelet")

    def restart_containerd(self) -> None:
        self.bed.restart(f"{self.node}/containerd")

    def freeze_server(self) -> None:
        self.bed.pause("apiserver")
        try:
            self.pass_by(4)
        finally:
            self.bed.resume("apiserver")

    def delete_slice(self) -> None:
        for each in self.aliquot.slices():
            self.bed.delete("resourceslices", each["metadata"]["name"])

    def sicken_gpu(self) -> None:
        self.aliquot.inject(self.node, "xid", "--gpu", "0", "--code", "79")
        self.pass_by(3)
        self.aliquot.inject(self.node, "recover", "--gpu", "0")

    def remove_cdi_specs(self) -> None:
        """What a careless operator does; containers that run need none."""
        for path in self.bed.node_path(self.node, "/run/cdi").glob(f"{names.DRIVER}*"):
            path.unlink(missing_ok=True)

    def spoil_checkpoint_of_nobody(self) -> None:
        folder = self.bed.node_path(self.node, f"{names.PLUGIN_DIR}/claims")
        (folder / "00000000-0000-4000-8000-000000000000.json").write_text('{"version": 1,')

    @staticmethod
    def pass_by(seconds: float) -> None:
        """Lets a fault last."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(0.1)


def containers(bed: Cluster, tenant: Tenant) -> dict[str, tuple[str, int]]:
    """Container ID and restarts of the steady pods."""
    found = {}
    for number in range(STEADY):
        pod: Object = bed.get("pods", f"steady-{number}", tenant.namespace)
        [status] = pod["status"]["containerStatuses"]
        assert "running" in status["state"], status
        found[pod["metadata"]["name"]] = (status["containerID"], status["restartCount"])
    return found


def test_after_a_storm_of_faults_nothing_is_left_and_nobody_was_disturbed(
    aliquot: Installation, tenant: Tenant, node: str, bed: Cluster
) -> None:
    soak = Soak(aliquot, tenant, node)
    print(f"seed {SEED}, {SOAK_S:g} s")  # to repeat a run that failed
    for number in range(STEADY):
        tenant.create(gpu_pod(f"steady-{number}", vgpu=1, gpumem=700))
        tenant.wait_said(f"steady-{number}", "going on")
    before = containers(bed, tenant)

    start_s = time.monotonic()
    next_fault_s = start_s + 2
    while time.monotonic() < start_s + SOAK_S or len(soak.faults) < SOAK_S // FAULT_EVERY_S:
        try:
            if time.monotonic() >= next_fault_s:
                soak.break_something()
                next_fault_s += FAULT_EVERY_S
            soak.step()
        except (ApiError, TestbedError, OSError):
            pass  # the server or the webhook is away: that is what this is about
        soak.pass_by(0.3)
    bed.wait_ready()
    aliquot.wait_ready(timeout_s=PATIENCE_S)
    assert containers(bed, tenant) == before, soak.faults
    tenant.create(gpu_pod("last", vgpu=1, gpumem=700))
    assert tenant.wait_said("last", "device", timeout_s=PATIENCE_S)["total_mib"] == 700

    for pod in bed.list("pods", tenant.namespace):
        bed.delete("pods", pod["metadata"]["name"], tenant.namespace, grace_s=0, timeout_s=None)
    what = f"after {soak.faults}"
    bed.wait_for(
        lambda: not bed.list("resourceclaims", tenant.namespace),
        what=f"no claim {what}",
        timeout_s=PATIENCE_S,
    )
    bed.wait_for(lambda: not aliquot.files(node), what=f"no file of a claim {what}", timeout_s=PATIENCE_S)
    bed.wait_for(lambda: tenant.namespace not in aliquot.metrics(node), what=f"no series {what}")
    [device] = aliquot.devices(node)
    assert "taints" not in device
    assert len(aliquot.slices()) == 1
    assert aliquot.used_bytes(node) == 0
    assert len(soak.faults) >= SOAK_S // FAULT_EVERY_S
    assert soak.made > (200 if SOAK_S >= 600 else SOAK_S / 10)
