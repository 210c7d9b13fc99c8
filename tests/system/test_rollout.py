# SPDX-License-Identifier: Apache-2.0
"""A rolling update of the real Deployment, behind its real Service, while pods are created."""

import pytest

from tests.system.installation import NAMESPACE, Installation
from tests.system.workloads import Tenant, asking, gpu_pod

pytestmark = pytest.mark.faults

_CLIENTS = 3


def test_a_rolling_update_fails_no_admission(aliquot: Installation, tenant: Tenant) -> None:
    bed = aliquot.bed

    def replicas() -> set[str]:
        pods = bed.list("pods", NAMESPACE, labels="app.kubernetes.io/name=aliquot-webhook")
        return {pod["metadata"]["uid"] for pod in pods}

    before = replicas()
    with asking(tenant, gpu_pod("probe", vgpu=1, gpumem=1000), clients=_CLIENTS) as answers:
        bed.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment/aliquot-webhook")
        wait = ("rollout", "status", "deployment/aliquot-webhook", "--timeout=120s")
        bed.kubectl("-n", NAMESPACE, *wait, timeout_s=130)
        # The old ones answer until the last connection to them has ended.
        bed.wait_for(lambda: not before & replicas(), what="the old replicas to be gone", timeout_s=60)
    assert answers.refused == []
    assert all("resourceClaims" in live["spec"] for live in answers.admitted)
    assert len(answers.admitted) > 20  # it was under load, else nothing is shown
    aliquot.wait_ready()
