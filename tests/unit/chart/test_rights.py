# SPDX-License-Identifier: Apache-2.0
"""The agent runs with no more than its pages say: a right that is added is listed there, with a reason."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.api import Object
from tests.testkit.chart import Values, render

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs/node-agent.md").read_text(encoding="utf-8")
SECURITY: Final = (ROOT / "docs/security.md").read_text(encoding="utf-8")
MAY: Final = {
    "resourceclaims": {"get", "list"},
    "resourceclaims/status": {"patch"},
    "resourceclaims/driver": {"associated-node:patch"},
    "resourceslices": {"list", "watch", "create", "update", "delete"},
    "nodes": {"get"},
    "pods": {"get", "list", "watch"},
    "pods/eviction": {"create"},
    "events": {"create", "patch"},
}
"""In the whole cluster; beside it one ConfigMap of its own namespace."""


def agents_pod(values: Values) -> Object:
    [made] = [
        each
        for each in render(values)
        if each["kind"] == "DaemonSet" and each["metadata"]["name"] == "aliquot-agent"
    ]
    return dict(made["spec"]["template"]["spec"])


@pytest.mark.parametrize("values", [{}, {"simulatedGpu": {"enabled": True}}], ids=["real", "simulated"])
def test_the_agents_containers_have_the_least_they_need(values: Values) -> None:
    pod = agents_pod(values)
    assert pod["hostPID"]
    assert not pod.get("hostNetwork")
    assert not pod.get("hostIPC")
    for container in pod["containers"] + pod.get("initContainers", []):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"], container["name"]
        assert context["allowPrivilegeEscalation"] is False
        assert not context.get("privileged")
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any("hostPort" in port for port in container.get("ports", []))


def test_the_pages_name_each_capability_of_the_agent_with_its_reason() -> None:
    by_name = {
        each["name"]: each["securityContext"]["capabilities"]["add"] for each in agents_pod({})["containers"]
    }
    [paragraph] = re.findall(r"^It runs as root.*?^$", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([A-Z_]{4,})`", paragraph)) == set(by_name["agent"])
    [row] = re.findall(r"^\| agent \|.*$", SECURITY, re.MULTILINE)
    assert set(re.findall(r"\b[A-Z]+_?[A-Z]{3,}\b", row)) == set(by_name["agent"])
    assert "`SYS_ADMIN`" in PAGE
    assert "SYS_ADMIN" not in by_name["agent"]
    template = (ROOT / "deploy/charts/aliquot/templates/agent/daemonset.yaml").read_text(encoding="utf-8")
    for capability in {name for names in by_name.values() for name in names}:
        assert re.search(rf"- {capability} # .{{10,}}", template), capability


def test_the_agents_account_may_do_what_is_listed_and_no_more() -> None:
    rules = [
        (each["metadata"].get("namespace", ""), rule)
        for each in render()
        if each["kind"] in ("ClusterRole", "Role") and each["metadata"]["name"] == "aliquot-agent"
        for rule in each["rules"]
    ]
    found = {
        resource: set(rule["verbs"])
        for namespace, rule in rules
        if not namespace
        for resource in rule["resources"]
    }
    assert found == MAY
    [own] = [rule for namespace, rule in rules if namespace]
    assert own["resources"] == ["configmaps"]
    assert own["resourceNames"] == ["aliquot-node-config"]
    assert own["verbs"] == ["get", "watch"]
