# SPDX-License-Identifier: Apache-2.0
"""The queries of the chart's alerts and dashboards, and which metrics and labels they name."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.testkit.chart import CHART

RULES: Final = CHART / "files/rules.yaml"
DASHBOARDS: Final = CHART / "files/dashboards"
OF_THE_SCRAPE: Final = frozenset({"job", "instance", "node"})
"""Labels that Prometheus adds, or the chart's PodMonitors have it add."""
_SELECTOR: Final = re.compile(r"\b(aliquot_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING: Final = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def alerts() -> list[dict[str, Any]]:
    """The alert rules."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str]]:
    """Name and query of each target of each panel, with every variable at "all"."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']} {target['refId']}", filled(target["expr"])


def variables() -> Iterator[str]:
    """The selectors from which dashboards take the values of their variables, with the label they take."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        for variable in json.loads(file.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                selector, _, label = variable["definition"].removeprefix("label_values(").rpartition(", ")
                yield f"count by ({label.rstrip(')')}) ({filled(selector)})"


def filled(expression: str) -> str:
    """What Grafana asks when every variable is at "all"."""
    return re.sub(r"\$\w+", ".*", expression)


def named(expression: str) -> tuple[dict[str, set[str]], set[str]]:
    """The labels that each metric is selected by, and those by which results are grouped."""
    selected: dict[str, set[str]] = {}
    for metric, matchers in _SELECTOR.findall(expression):
        selected.setdefault(metric, set()).update(_MATCHER.findall(matchers))
    grouped = {label.strip() for found in _GROUPING.findall(expression) for label in found.split(",")}
    return selected, grouped
