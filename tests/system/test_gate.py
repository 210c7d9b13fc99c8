# SPDX-License-Identifier: Apache-2.0
"""Where the API server lacks consumable capacity, pods are refused: never a silent whole GPU."""

from collections.abc import Iterator

import pytest

from aliquot_api import names
from tests.cluster.cluster import Cluster
from tests.cluster.system import TestbedError
from tests.system.installation import Installation, kubernetes_version
from tests.system.workloads import Tenant, gpu_pod


@pytest.fixture
def gate_off() -> Iterator[Installation]:
    """Aliquot on a cluster with the gate off: the chart refuses, until it is told not to look."""
    off = {names.CONSUMABLE_CAPACITY_GATE: False}
    with Cluster.up(name="gate-off", kubernetes=kubernetes_version(), gates=off) as bed:
        installation = Installation(bed, values={"install": {"check": False}})
        installation.load_images()
        with pytest.raises(TestbedError, match=names.CONSUMABLE_CAPACITY_GATE):
            installation.release.install({**installation.values, "install": {"check": True}})
        installation.release.uninstall("--no-hooks")
        installation.release.install(installation.values)
        yield installation


def test_without_the_gate_pods_are_refused_and_nothing_shareable_is_published(gate_off: Installation) -> None:
    bed = gate_off.bed
    tenant = Tenant(bed, namespace="tenant", labels={names.INJECT_LABEL: names.INJECT_ENABLED})
    message = bed.wait_for(
        lambda: next(
            (
                refused
                for refused in [tenant.refusal(gpu_pod("gpu", vgpu=1, gpumem=1000))]
                if names.CONSUMABLE_CAPACITY_GATE in refused
            ),
            None,
        ),
        what="a refusal that names the gate",
        timeout_s=180,  # the images' first start, on a machine that may be loaded
    )
    assert "kube-apiserver" in message
    assert "kube-scheduler" in message
    tenant.create(gpu_pod("plain", command=["sleep", "1000"]))
    bed.wait_for_pod("plain", tenant.namespace)

    reason = bed.wait_for(
        lambda: next(
            (text for text in [gate_off.readiness()] if names.CONSUMABLE_CAPACITY_GATE in text), None
        ),
        what="the agent's readiness to name the gate",
    )
    assert "kube-apiserver" in reason
    assert not [device for node in bed.nodes for device in gate_off.devices(node)]
