# SPDX-License-Identifier: Apache-2.0
"""Pictures of dashboards show what they ask for; those in the documents are of today's dashboards."""

import json
import xml.etree.ElementTree as ET
from typing import Any, Final

import pytest

from tests.testkit.dashboards import ALL, FLEET
from tests.testkit.drawing import Series, legend, shown, svg
from tests.testkit.grafana import Dashboard, document
from tests.unit.test_links import ROOT

GIB: Final = 1 << 30
_SVG: Final = "{http://www.w3.org/2000/svg}"


def panel(kind: str, unit: str) -> dict[str, Any]:
    place = {"x": 0, "y": 0, "w": 12, "h": 8}
    return {"title": "Memory", "type": kind, "gridPos": place, "fieldConfig": {"defaults": {"unit": unit}}}


def texts(drawn: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(drawn).iter(f"{_SVG}text")]


def lines(drawn: str) -> list[list[tuple[float, float]]]:
    found = ET.fromstring(drawn).iter(f"{_SVG}polyline")
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in each.attrib["points"].split())]
        for each in found
    ]


def test_a_line_rises_as_its_values_do_within_the_panel_and_has_its_legend() -> None:
    series = Series("a <b>", {}, [(0, 0), (60, 3 * GIB), (120, 6 * GIB)])
    drawn = svg("T", [(panel("timeseries", "bytes"), [series])], span_s=120)
    [line] = lines(drawn)
    assert [x for x, _ in line] == sorted({x for x, _ in line})
    assert line[0][1] - line[1][1] == pytest.approx(line[1][1] - line[2][1], abs=0.2)
    assert all(0 < x < 600 and 0 < y < 240 for x, y in line)
    assert {"T", "Memory", "a <b>", "0 B", "6 GiB", "2 min"} <= set(texts(drawn))


def test_values_below_zero_are_drawn_too() -> None:
    drawn = svg("T", [(panel("timeseries", "short"), [Series("", {}, [(0, -5), (60, 5)])])], span_s=60)
    [line] = lines(drawn)
    assert 240 > line[0][1] > line[1][1] > 0


@pytest.mark.parametrize("kind", ["stat", "table"])
def test_a_value_is_the_last_one(kind: str) -> None:
    series = [Series("", {"pod": "a"}, [(0, 1), (9, 2 * GIB)])]
    assert "2 GiB" in texts(svg("T", [(panel(kind, "bytes"), series)], span_s=60))


def test_a_panel_without_series_says_so() -> None:
    assert "nothing to show" in texts(svg("T", [(panel("timeseries", "s"), [])], span_s=60))


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [(0, "bytes", "0 B"), (1536 << 20, "bytes", "1.5 GiB"), (-1 << 20, "bytes", "-1 MiB"),
     (0.35, "percentunit", "35 %"), (12, "short", "12"), (0.25, "reqps", "0.25/s"), (0.01, "s", "0.01 s")],
)  # fmt: skip
def test_values_are_said_with_their_unit(value: float, unit: str, words: str) -> None:
    assert shown(value, unit) == words


def test_every_unit_of_a_dashboard_is_known() -> None:
    for dashboard in ALL:
        for each in dashboard.panels:
            assert shown(1, each.unit)


def test_a_legend_is_filled_with_labels() -> None:
    assert legend("{{node}} {{gone}} used", {"node": "n"}) == "n  used"


@pytest.mark.parametrize("dashboard", ALL, ids=lambda dashboard: str(dashboard.name))
def test_the_documents_show_todays_dashboards(dashboard: Dashboard) -> None:
    picture = f"dashboards/{dashboard.name}.svg"
    assert f"]({picture})" in (ROOT / "docs/metrics.md").read_text()
    titles = [each["title"] for each in json.loads(document(dashboard))["panels"]]
    there = texts((ROOT / "docs" / picture).read_text())
    assert [title for title in titles if title not in there] == [], "run `make pictures`"


def test_a_picture_of_a_fleet_that_does_nothing_is_drawn() -> None:
    still = [Series("", {}, [(0, 0), (60, 0)])]
    panels = json.loads(document(FLEET))["panels"]
    assert texts(svg("T", [(each, still) for each in panels], span_s=60)).count("GPUs") == 1
