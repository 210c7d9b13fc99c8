# SPDX-License-Identifier: Apache-2.0
"""Dashboards are current, what the chart installs, and ask only for what the components show."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from aliquot_agent.hardware import Cause, LeftOut
from aliquot_agent.pacing import Paced
from aliquot_agent.picture import Picture
from aliquot_controller.metrics import Metrics as ControllerMetrics
from aliquot_webhook.metrics import Metrics as WebhookMetrics
from tests.cluster.system import run
from tests.testkit.chart import render
from tests.testkit.dashboards import ALL, FOLDER
from tests.testkit.grafana import Dashboard, document
from tests.testkit.prometheus import program
from tests.testkit.promql import OF_THE_SCRAPE, alerts, filled, named, panels, variables
from tests.unit.agent.test_metrics import Scene
from tests.unit.agent.test_report import observation

QUERIES = [
    *((rule["alert"], rule["expr"]) for rule in alerts()),
    *panels(),
    *((f"variable: {query}", query) for query in variables()),
]


def pages() -> Iterator[str]:
    """What each component shows when it has seen one of everything."""
    scene = Scene()
    try:
        seen = observation("u")
        scene.picture = Picture(observations=(seen,))
        scene.paced = {(seen.claim.uid, seen.share.share): Paced(1, 1, 1000, 0, 1)}
        scene.left_out = (LeftOut(1, "GPU-b", Cause.MIG, "in MIG mode"),)
        yield scene.get("/metrics")[1]
    finally:
        scene.server.stop()
    webhook = WebhookMetrics()
    webhook.reviewed(kind="mutate", result="patched", seconds=0.1)
    yield webhook.exposition().decode()
    controller = ControllerMetrics()
    controller.budgets({("team-a", "memory", "limit"): 1})
    yield controller.exposition().decode()


@cache
def shown() -> dict[str, set[str]]:
    """Labels of each metric."""
    labels: dict[str, set[str]] = {"up": set()}
    for page in pages():
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@pytest.mark.parametrize(("where", "query"), QUERIES, ids=[where for where, _ in QUERIES])
def test_a_query_names_only_metrics_and_labels_that_are_shown(where: str, query: str) -> None:
    selected, grouped = named(query)
    assert selected, where
    for metric, labels in selected.items():
        assert metric in shown()
        assert labels <= shown()[metric] | OF_THE_SCRAPE
        assert grouped <= shown()[metric] | OF_THE_SCRAPE


def test_every_query_is_promql(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": query} for number, (_, query) in enumerate(QUERIES)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in run(program("promtool"), "check", "rules", file)


@pytest.mark.parametrize("dashboard", ALL, ids=lambda dashboard: str(dashboard.name))
def test_a_dashboard_is_current_and_uses_the_variables_that_it_has(dashboard: Dashboard) -> None:
    text = (FOLDER / f"{dashboard.name}.json").read_text()
    assert text == document(dashboard), "run `make docs`"
    made: Any = json.loads(text)
    for name, _ in dashboard.variables:
        assert any(f'"${name}"' in target["expr"] for panel in made["panels"] for target in panel["targets"])
    asked = [target["expr"] for panel in made["panels"] for target in panel["targets"]]
    for name, _ in dashboard.variables:
        asked = [expression.replace(f"${name}", ".*") for expression in asked]
    assert asked == [filled(expression) for expression in asked]


def test_the_chart_installs_all_of_them_and_only_when_asked() -> None:
    made = render({"monitoring": {"dashboards": {"enabled": True}}})
    found = {
        name: text
        for each in made
        if each["kind"] == "ConfigMap" and each["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in each["data"].items()
    }
    assert {name: json.loads(text) for name, text in found.items()} == {
        f"aliquot-{each.name}.json": json.loads(document(each)) for each in ALL
    }
    assert not [each for each in render() if "dashboard" in each["metadata"]["name"]]
