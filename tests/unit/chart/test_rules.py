# SPDX-License-Identifier: Apache-2.0
"""Alerts fire when they have to, lead to a page that is there, and are what the chart installs."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.cluster.system import run
from tests.testkit.chart import NAMESPACE, render
from tests.testkit.prometheus import program
from tests.testkit.promql import RULES, alerts
from tests.unit.test_links import ROOT, anchors

CASES: Final = ROOT / "tests/chart/rules_test.yaml"


def test_each_alert_fires_when_it_has_to_and_not_a_moment_before() -> None:
    run(program("promtool"), "test", "rules", CASES)
    seen: dict[str, list[bool]] = {}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for look in case["alert_rule_test"]:
            seen.setdefault(look["alertname"], []).append(bool(look["exp_alerts"]))
    assert seen == {rule["alert"]: [False, True] for rule in alerts()}


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_is_wrong_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in anchors(ROOT / page)
    assert f"`{rule['alert']}`" in (ROOT / "docs/troubleshooting.md").read_text()


def test_the_chart_installs_the_same_rules_and_only_when_asked() -> None:
    asked = {"monitoring": {"rules": {"enabled": True, "labels": {"release": "p"}}}}
    made = render(asked, served=["monitoring.coreos.com/v1"])
    [rule] = [each for each in made if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["namespace"] == NAMESPACE
    assert rule["metadata"]["labels"]["release"] == "p"
    assert not [each for each in render() if each["kind"] == "PrometheusRule"]


def test_a_mistake_in_a_rule_is_found(tmp_path: Path) -> None:
    wrong = RULES.read_text().replace("aliquot_gpu_healthy == 0", "aliquot_gpu_healthy == 1")
    assert wrong != RULES.read_text()
    (tmp_path / "rules.yaml").write_text(wrong)
    cases = yaml.safe_load(CASES.read_text()) | {"rule_files": [str(tmp_path / "rules.yaml")]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    with pytest.raises(Exception, match="AliquotGpuTainted"):
        run(program("promtool"), "test", "rules", tmp_path / "cases.yaml")
