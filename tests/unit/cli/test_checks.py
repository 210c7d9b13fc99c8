# SPDX-License-Identifier: Apache-2.0
import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aliquot_cli.cards import cards
from aliquot_cli.checks import CONTROLLER, RIGHTS, WEBHOOK, Facts, Level, judge
from aliquot_webhook import certs
from tests.unit.cli.kit import Object, allocated, device, resource_slice

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BUNDLE = certs.renewed(None, hosts=["aliquot-webhook.aliquot-system.svc"], now=NOW)
assert BUNDLE is not None
OTHER = certs.renewed(None, hosts=["aliquot-webhook.aliquot-system.svc"], now=NOW)
assert OTHER is not None


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def configuration(authority: bytes | None = BUNDLE.authority, policy: str = "Fail") -> Object:
    config = {} if authority is None else {"caBundle": encoded(authority)}
    return {"webhooks": [{"name": "pods.aliquot.dev", "clientConfig": config, "failurePolicy": policy}]}


def workload(**status: int) -> Object:
    return {"metadata": {"namespace": "aliquot-system"}, "spec": {"replicas": 2}, "status": status}


def pod(image: str) -> Object:
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": "aliquot-agent"}},
        "status": {"containerStatuses": [{"name": "agent", "imageID": image}]},
    }


AGENT_WELL: Object = {"notReady": {}, "configProblem": "", "leftOut": [], "gpus": [{}]}
WELL = Facts(
    now=NOW + timedelta(days=1),
    minor=37,
    deployments={WEBHOOK: workload(readyReplicas=2), CONTROLLER: workload(readyReplicas=2)},
    daemonset=workload(desiredNumberScheduled=1, numberReady=1),
    pods=[pod("sha256:1")],
    lease={"spec": {"holderIdentity": "a"}},
    configurations={"MutatingWebhookConfiguration": configuration()},
    secret={"data": {"tls.crt": encoded(BUNDLE.certificate)}},
    agents={"n1": AGENT_WELL},
    cards=cards([resource_slice("n1", device())], []),
    namespaces=[{"metadata": {"name": "team", "labels": {"aliquot.dev/inject": "enabled"}}}],
)


def test_a_sound_installation_has_no_findings() -> None:
    assert {each.level for each in judge(WELL)} == {Level.OK}


SICK = device(taints=[{"key": "gpu.aliquot.dev/unhealthy", "value": "ecc", "effect": "NoSchedule"}])
OVER = {"type": "WithinQuota", "status": "False", "reason": "OverQuota", "message": "too much"}


@pytest.mark.parametrize(
    ("change", "level", "says"),
    [
        pytest.param({"minor": 34}, Level.ERROR, "1.34 is not supported", id="old"),
        pytest.param({"server_problem": "the gate"}, Level.ERROR, "the gate", id="gate"),
        pytest.param({"missing_crds": ["aliquotbudgets.aliquot.dev"]}, Level.ERROR, "is missing", id="crd"),
        pytest.param(
            {"deployments": {WEBHOOK: workload(), CONTROLLER: workload(readyReplicas=2)}},
            Level.ERROR,
            "none of its 2 replicas",
            id="webhook down",
        ),
        pytest.param(
            {"deployments": {WEBHOOK: workload(readyReplicas=1)}},
            Level.WARNING,
            "1 of 2",
            id="half a webhook",
        ),
        pytest.param({"deployments": {WEBHOOK: None}}, Level.ERROR, "does not exist", id="no webhook"),
        pytest.param({"daemonset": None}, Level.ERROR, "its DaemonSet does not exist", id="no agents"),
        pytest.param(
            {"daemonset": workload(desiredNumberScheduled=3, numberReady=2)},
            Level.ERROR,
            "ready on 2 of 3",
            id="an agent down",
        ),
        pytest.param({"daemonset": workload()}, Level.ERROR, "nodeSelector", id="no node is chosen"),
        pytest.param({"lease": None}, Level.WARNING, "no replica leads", id="no leader"),
        pytest.param(
            {"pods": [pod("sha256:1"), pod("sha256:2")]}, Level.WARNING, "2 different images", id="drift"
        ),
        pytest.param(
            {"configurations": {"MutatingWebhookConfiguration": None}},
            Level.ERROR,
            "pods are not converted",
            id="no configuration",
        ),
        pytest.param(
            {"configurations": {"MutatingWebhookConfiguration": configuration(None)}},
            Level.ERROR,
            "caBundle is empty",
            id="no caBundle",
        ),
        pytest.param(
            {"configurations": {"MutatingWebhookConfiguration": configuration(OTHER.authority)}},
            Level.ERROR,
            "does not match",
            id="another caBundle",
        ),
        pytest.param(
            {"configurations": {"MutatingWebhookConfiguration": configuration(policy="Ignore")}},
            Level.WARNING,
            "failurePolicy is Ignore",
            id="fails open",
        ),
        pytest.param(
            {"now": NOW + timedelta(days=80)}, Level.WARNING, "ends on", id="certificate near its end"
        ),
        pytest.param({"now": NOW + timedelta(days=91)}, Level.ERROR, "ended on", id="certificate at its end"),
        pytest.param({"secret": None}, Level.WARNING, "cannot be read", id="no secret"),
        pytest.param(
            {"secret": {"data": {"tls.crt": "AAAA"}}}, Level.ERROR, "cannot be read", id="no certificate"
        ),
        pytest.param({"denied": [RIGHTS[0]]}, Level.ERROR, "get resourceclaims is not allowed", id="rbac"),
        pytest.param({"denied": None}, Level.WARNING, "may not ask", id="no administrator"),
        pytest.param(
            {"agents": {"n1": "timeout"}}, Level.WARNING, "cannot be asked: timeout", id="silent agent"
        ),
        pytest.param(
            {"agents": {"n1": {**AGENT_WELL, "notReady": {"base": "no CDI spec"}}}},
            Level.ERROR,
            "no CDI spec",
            id="no toolkit",
        ),
        pytest.param(
            {"agents": {"n1": {**AGENT_WELL, "configProblem": "shares: many"}}},
            Level.ERROR,
            "shares: many",
            id="node configuration",
        ),
        pytest.param(
            {"agents": {"n1": {**AGENT_WELL, "leftOut": [{"index": 1, "cause": "mig", "message": "MIG"}]}}},
            Level.WARNING,
            "GPU 1 is left out: MIG",
            id="left out",
        ),
        pytest.param({"cards": ()}, Level.ERROR, "no node publishes", id="no GPUs"),
        pytest.param(
            {"cards": cards([resource_slice("n1", SICK)], [])}, Level.WARNING, "is tainted", id="sick GPU"
        ),
        pytest.param(
            {
                "cards": cards(
                    [resource_slice("n1", device())],
                    [allocated("a", data={}, conditions=[OVER], memory="1Gi")],
                )
            },
            Level.WARNING,
            "WithinQuota OverQuota: too much",
            id="over quota",
        ),
        pytest.param({"namespaces": []}, Level.WARNING, "no namespace has opted in", id="nobody opted in"),
        pytest.param(
            {"left_pods": [{"metadata": {"name": "p", "namespace": "n"}}]},
            Level.WARNING,
            "pod n/p asks for GPUs and was not converted",
            id="a pod that was not converted",
        ),
    ],
)
def test_each_fault_has_a_finding_with_its_fix(change: dict[str, Any], level: Level, says: str) -> None:
    findings = [each for each in judge(replace(WELL, **change)) if each.level is not Level.OK]
    [finding] = [each for each in findings if says in each.what or says in each.fix]
    assert finding.level is level
    assert finding.fix
