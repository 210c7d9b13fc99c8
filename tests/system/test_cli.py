# SPDX-License-Identifier: Apache-2.0
"""The command on a real cluster: what people look at and change."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aliquot_api import names
from aliquot_cli.__main__ import main
from aliquot_cli.checks import RIGHTS
from tests.cluster.cluster import Cluster
from tests.system.installation import Installation
from tests.system.test_enforcement import configure
from tests.system.workloads import MIB, Tenant, gpu_pod

Aliquot = Callable[..., str]


@pytest.fixture
def say(bed: Cluster, capsys: pytest.CaptureFixture[str]) -> Aliquot:
    """say(*WORDS, status=0): what the command prints."""

    def said(*words: str, status: int = 0) -> str:
        capsys.readouterr()
        ended = main([*words, "--kubeconfig", str(bed.kubeconfig)])
        out, err = capsys.readouterr()
        assert ended == status, out + err
        return out + err

    return said


@pytest.fixture
def environment(bed: Cluster) -> dict[str, str]:
    """Of a user who has installed the plugin."""
    found = bed.environment()
    found["PATH"] = f"{Path(sys.executable).parent}:{found['PATH']}"
    return found


def test_top_and_report_show_what_a_pod_has_and_uses(
    aliquot: Installation, tenant: Tenant, say: Aliquot, environment: dict[str, str]
) -> None:
    tenant.create(gpu_pod("a", vgpu=1, gpumem=2000, gpucores=30, command=("elastic", "1500")))
    tenant.wait_said("a", "full")

    def share() -> dict[str, Any] | None:
        [card] = json.loads(say("top", "-o", "json"))
        [found] = [each for each in card["shares"] if each["namespace"] == tenant.namespace]
        shown: dict[str, Any] = found
        return shown if (shown["used"] or 0) >= 1500 * MIB else None

    found = aliquot.bed.wait_for(share, what="the use of the share in aliquot top", timeout_s=20)
    assert (found["pods"], found["limit"]) == (["a"], 2000 * MIB)
    assert found["consumed"] == {"memory": 2000 * MIB, "cores": 30, "shares": 1}
    plugin = ["kubectl", "aliquot", "top", "--node", "node-1"]
    shown = subprocess.run(plugin, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert f"{tenant.namespace}/" in shown.stdout
    assert "\033" not in shown.stdout

    rows = {row["namespace"]: row for row in csv.DictReader(io.StringIO(say("report", "-o", "csv")))}
    assert int(rows[tenant.namespace]["allocatedBytes"]) == 2000 * MIB
    assert int(rows[tenant.namespace]["wastedBytes"]) < 500 * MIB
    assert "running: " in say("explain", "pod", "a", "-n", tenant.namespace)


def test_resize_waits_for_the_node(tenant: Tenant, say: Aliquot) -> None:
    tenant.create(gpu_pod("a", vgpu=1, gpumem=4000, command=("elastic", "100")))
    tenant.wait_said("a", "full")
    where = ("-n", tenant.namespace)
    assert "in force: main 3000Mi" in say("resize", "a", "--memory", "3000Mi", *where)
    tenant.wait_said("a", "total 3000", timeout_s=10)
    assert "in force: main 3500Mi" in say("resize", "a", "--memory", "3500Mi", "-c", "main", *where)
    assert "in force: main 4000Mi" in say("resize", "a", "--reset", *where)
    tenant.create(gpu_pod("b", vgpu=1, gpumem=15000, command=("elastic", "100")))
    tenant.wait_said("b", "full")
    assert "NoRoom" in say("resize", "a", "--memory", "12000Mi", *where, status=3)
    assert "did you mean 8000Mi?" in say("resize", "a", "--memory", "8000", *where, status=1)


def test_budgets_are_set_shown_and_removed(aliquot: Installation, tenant: Tenant, say: Aliquot) -> None:
    where = ("-n", tenant.namespace)
    assert "no budget" in say("budget", "show", *where)
    say("budget", "set", "--memory", "3Gi", "--gpus", "2", *where)
    aliquot.bed.wait_for(
        lambda: aliquot.bed.get("aliquotbudgets", "main", tenant.namespace).get("status"),
        what="the controller to look at the budget",
        timeout_s=30,
    )
    tenant.create(gpu_pod("a", vgpu=1, gpumem=2048, command=("sleep", "600")))
    aliquot.bed.wait_for(
        lambda: json.loads(say("budget", "show", "-o", "json", *where))[0]["memory"]["used"] == 2048 * MIB,
        what="the pod in the budget",
        timeout_s=30,
    )
    assert "2Gi   3Gi" in say("budget", "show", *where)
    assert "exceed the namespace's budget" in tenant.refusal(gpu_pod("b", vgpu=1, gpumem=2048))
    say("budget", "unset", *where)
    assert "no budget" in say("budget", "show", *where)


def findings(say: Aliquot, *, status: int) -> dict[tuple[str, str], list[dict[str, str]]]:
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for each in json.loads(say("doctor", "-o", "json", status=status)):
        found.setdefault((each["check"], each["level"]), []).append(each)
    return found


def test_doctor_finds_nothing_on_a_sound_installation(tenant: Tenant, say: Aliquot) -> None:
    found = findings(say, status=0)
    assert {level for _, level in found} == {"ok"}, found
    checks = {check for check, _ in found}
    assert checks >= {
        "kubernetes",
        "gates",
        "rbac",
        "certificates",
        "webhooks",
        "drift",
        "gpus",
        "node node-1",
    }
    assert say("doctor", "--quiet") == ""


def test_doctor_finds_a_sick_gpu_and_a_configuration_that_is_not_understood(
    aliquot: Installation, tenant: Tenant, say: Aliquot, bed: Cluster, node: str
) -> None:
    aliquot.inject(node, "xid", "--gpu", "0", "--code", "79")
    configure(bed, "defaults: {shares: many}")
    try:
        bed.wait_for(
            lambda: "is tainted gpu.aliquot.dev/unhealthy" in str(findings(say, status=3)),
            what="the sick GPU and the configuration in aliquot doctor",
        )
        [problem] = findings(say, status=3)[(f"node {node}", "error")]
        assert "defaults.shares" in problem["what"]
        assert "aliquot-node-config" in problem["fix"]
    finally:
        bed.delete("configmaps", "aliquot-node-config", "aliquot-system")
        aliquot.inject(node, "recover", "--gpu", "0")
    bed.wait_for(lambda: not aliquot.devices(node)[0].get("taints"), what="the GPU to be well", timeout_s=60)


def test_doctor_finds_what_is_missing(tenant: Tenant, say: Aliquot, bed: Cluster) -> None:
    role = bed.get("clusterroles", "aliquot-agent")
    device_class = bed.get("deviceclasses", names.DEVICE_CLASS)
    kept = [rule for rule in role["rules"] if "resourceclaims/driver" not in rule["resources"]]
    bed.api.patch("clusterroles", "aliquot-agent", {"rules": kept})
    bed.delete("deviceclasses", names.DEVICE_CLASS)
    try:
        found = findings(say, status=3)
    finally:
        bed.api.patch("clusterroles", "aliquot-agent", {"rules": role["rules"]})
        del device_class["metadata"]["resourceVersion"], device_class["metadata"]["uid"]
        bed.api.create(device_class)
    assert "resourceclaims/driver is not allowed" in found[("rbac", "error")][0]["what"]
    assert f"DeviceClass {names.DEVICE_CLASS} is missing" in found[("gates", "error")][0]["what"]


def test_doctor_asks_for_rights_that_the_chart_gives(bed: Cluster, aliquot: Installation) -> None:
    for right in RIGHTS:
        rules = bed.get("clusterroles", right.account)["rules"]
        resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
        assert any(
            right.group in rule["apiGroups"] and resource in rule["resources"] and right.verb in rule["verbs"]
            for rule in rules
        ), right


def test_without_a_cluster_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "want a kubeconfig that names a cluster" in capsys.readouterr().err
