# SPDX-License-Identifier: Apache-2.0
"""A rolling update of the real Deployment, behind its real Service, while pods are created."""

import threading

import pytest

from tests.cluster.api import ApiError
from tests.system.installation import NAMESPACE, Installation
from tests.system.workloads import Tenant, gpu_pod

pytestmark = pytest.mark.faults

_CLIENTS = 3


def test_a_rolling_update_fails_no_admission(aliquot: Installation, tenant: Tenant) -> None:
    bed = aliquot.bed
    given = gpu_pod("probe", vgpu=1, gpumem=1000)
    stopping = threading.Event()
    failures: list[str] = []
    admitted: list[bool] = []

    def ask() -> None:
        while not stopping.wait(0.02):
            try:
                live = bed.api.create(given, namespace=tenant.namespace, dry_run=True)
            except ApiError as error:
                failures.append(str(error))
                return
            admitted.append("resourceClaims" in live["spec"])

    def replicas() -> set[str]:
        pods = bed.list("pods", NAMESPACE, labels="app.kubernetes.io/name=aliquot-webhook")
        return {pod["metadata"]["uid"] for pod in pods}

    before = replicas()
    clients = [threading.Thread(target=ask, name=f"client-{number}") for number in range(_CLIENTS)]
    for client in clients:
        client.start()
    try:
        bed.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment/aliquot-webhook")
        wait = ("rollout", "status", "deployment/aliquot-webhook", "--timeout=120s")
        bed.kubectl("-n", NAMESPACE, *wait, timeout_s=130)
        # The old ones answer until the last connection to them has ended.
        bed.wait_for(lambda: not before & replicas(), what="the old replicas to be gone", timeout_s=60)
    finally:
        stopping.set()
        for client in clients:
            client.join(30)
    assert not any(client.is_alive() for client in clients)
    assert failures == []
    assert all(admitted)
    assert len(admitted) > 20  # it was under load, else nothing is shown
    aliquot.wait_ready()
