# SPDX-License-Identifier: Apache-2.0
"""What `rewrite` writes passes the real API server's validation: every row of the table, and random pods.

Dry runs in a namespace of the cluster; our own webhooks are out of the way, for the inventories differ.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy
from aliquot_webhook.rewrite import Patch, rewrite
from tests.cluster import Cluster
from tests.unit.webhook.kit import apply
from tests.unit.webhook.semantics import Case, cases
from tests.unit.webhook.test_rewrite_properties import INVENTORIES, POLICIES, plausible_pods
from tests.webhook_cluster.conftest import without_own_policies
from tests.webhook_cluster.installation import CONFIGURATIONS

CONVERTED = [case for case in cases() if "claim" in case.row]
EXAMPLES = int(os.environ.get("ALIQUOT_EXAMPLES", "100"))


@pytest.fixture(scope="module")
def bare(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without our webhooks, and without what would miss them."""
    present = [
        each
        for kind in CONFIGURATIONS
        for each in cluster.list(kind)
        if each["metadata"]["name"] == "aliquot-webhook"
    ]
    for each in present:
        cluster.delete(f"{each['kind'].lower()}s", "aliquot-webhook")
    with without_own_policies(cluster):
        yield cluster
    for each in present:
        each["metadata"] = {"name": "aliquot-webhook"}
        cluster.apply(each)


def check(cluster: Cluster, given: Any, decision: Patch) -> None:
    """The server takes every template, and the pod, and adds nothing of its own to our claims."""
    for template in decision.templates:
        manifest = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": template.name, "namespace": "default"},
            "spec": {"spec": template.spec},
        }
        live = cluster.api.create(manifest, dry_run=True)
        assert len(live["spec"]["spec"]["devices"]["requests"]) == len(template.spec["devices"]["requests"])
    result: Any = {"apiVersion": "v1", "kind": "Pod", **apply(given, decision.operations)}  # type: ignore[dict-item]
    result["metadata"]["namespace"] = "default"
    cluster.api.create(result, dry_run=True)


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case.name)
def test_the_server_takes_what_a_row_becomes(bare: Cluster, case: Case) -> None:
    decision = rewrite(case.pod, case.policy, case.known)
    assert isinstance(decision, Patch)
    case.pod["spec"].pop("runtimeClassName", None)  # it would have to exist
    check(bare, case.pod, decision)


@given(pod=plausible_pods(), known=INVENTORIES, policy=POLICIES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_server_takes_what_a_random_pod_becomes(
    bare: Cluster, pod: Any, known: Inventory, policy: Policy
) -> None:
    decision = rewrite(pod, policy, known)
    if isinstance(decision, Patch) and decision.templates:
        check(bare, pod, decision)
