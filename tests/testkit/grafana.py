# SPDX-License-Identifier: Apache-2.0
"""Dashboards as Grafana reads them: JSON, panels placed from left to right."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_SCHEMA_VERSION: Final = 39
"""Of Grafana 10.4; later ones migrate it by themselves."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture; `queries` are pairs of legend and PromQL."""

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    text: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page; `variables` are pairs of name and the query for its values."""

    name: str
    title: str
    panels: Sequence[Panel]
    variables: Sequence[tuple[str, str]] = ()


def document(dashboard: Dashboard) -> str:
    """The dashboard as Grafana reads it."""
    variables: list[dict[str, Any]] = [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
        }
    ]
    for name, query in dashboard.variables:
        variables.append(
            {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": _SOURCE,
                "definition": query,
                "query": {"query": query, "refId": name},
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    made = {
        "uid": f"aliquot-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["aliquot"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": _placed(dashboard.panels),
    }
    return json.dumps(made, indent=1) + "\n"


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Rows from left to right; all panels of a row are of one height."""
    made, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + height
        height = 4 if panel.kind == "stat" else 8
        made.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height}))
        x += panel.width
    return made


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    is_table = panel.kind == "table"
    return {
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": is_table,
                "range": not is_table,
                "format": "table" if is_table else "time_series",
            }
            for index, (legend, expression) in enumerate(panel.queries)
        ],
    }
