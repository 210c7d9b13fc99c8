# SPDX-License-Identifier: Apache-2.0
"""Draws the dashboards of the documents: four minutes of some tenants, as a Prometheus saw them.

python -m tests.chart.pictures    writes docs/dashboards/*.svg
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from aliquot_api import names
from tests.chart import scraping
from tests.cluster.cluster import Cluster
from tests.system.installation import TEST_VALUES, Installation, gates, kubernetes_version
from tests.system.test_compute import launcher
from tests.system.test_resize import annotate, elastic
from tests.system.workloads import Tenant, gpu_pod
from tests.testkit.chart import merged
from tests.testkit.dashboards import ALL
from tests.testkit.drawing import Series, legend, svg
from tests.testkit.grafana import Dashboard, document
from tests.testkit.prometheus import Server, serving
from tests.testkit.promql import RULES, filled

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs/dashboards"
_SPAN_S: Final = 240
_STEP_S: Final = 4
_QUIET_S: Final = 10
"""Until the first pod comes."""


def main() -> int:
    with Cluster.up(name="pictures", nodes=2, kubernetes=kubernetes_version(), gates=gates()) as bed:
        aliquot = Installation(bed, values=merged(TEST_VALUES, {"simulatedGpu": {"gpus": "l4:2"}}))
        aliquot.install()
        aliquot.wait_ready(timeout_s=120)
        teams = {name: _team(bed, name) for name in ("research", "serving")}
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(Path(folder), scrape=list(scraping.jobs(aliquot)), rules=RULES) as prometheus,
        ):
            start_s = time.time()
            _play(teams, started_s=time.monotonic())
            claim = teams["research"].claim_of("train")["metadata"]["name"]
            FOLDER.mkdir(exist_ok=True)
            for dashboard in ALL:
                drawn = draw(dashboard, prometheus, start_s=start_s, claim=claim)
                (FOLDER / f"{dashboard.name}.svg").write_text(drawn, encoding="utf-8")
    return 0


def draw(dashboard: Dashboard, prometheus: Server, *, start_s: float, claim: str) -> str:
    """One dashboard; of claims, this one."""
    panels = []
    for panel in json.loads(document(dashboard))["panels"]:
        series: list[Series] = []
        for target in panel["targets"]:
            query = filled(target["expr"].replace("$claim", claim))
            if panel["type"] == "timeseries":
                found = prometheus.range(query, start_s=start_s, end_s=start_s + _SPAN_S, step_s=_STEP_S)
            else:
                found = [{**each, "values": [each["value"]]} for each in prometheus.query(query)]
            series += [_series(each, target["legendFormat"], start_s) for each in found]
        panels.append((panel, series))
    return svg(dashboard.title, panels, span_s=_SPAN_S)


def _series(found: Mapping[str, Any], pattern: str, start_s: float) -> Series:
    labels = {name: value for name, value in found["metric"].items() if name != "__name__"}
    points = [(float(at) - start_s, float(value)) for at, value in found["values"] if value != "NaN"]
    return Series(legend(pattern, labels), labels, points)


def _team(bed: Cluster, name: str) -> Tenant:
    """A namespace with a budget."""
    team = Tenant(bed, namespace=name, labels={names.INJECT_LABEL: names.INJECT_ENABLED})
    kind = {"apiVersion": f"{names.CONFIG_GROUP}/v1alpha1", "kind": "AliquotBudget"}
    bed.apply([{**kind, "metadata": {"name": "main"}, "spec": {"memory": "32Gi"}}], namespace=name)
    return team


def _play(teams: Mapping[str, Tenant], *, started_s: float) -> None:
    """What happens meanwhile, by the second at which it does."""
    research, serving_team = teams["research"], teams["serving"]
    acts: dict[int, Callable[[], object]] = {
        _QUIET_S: lambda: research.create(launcher("train", 40)),
        20: lambda: serving_team.create(elastic("chat", 7000, gpumem=9000)),
        35: lambda: serving_team.create(launcher("embed", 30)),
        50: lambda: research.create(elastic("notebook", 3000, gpumem=6000)),
        80: lambda: serving_team.create(gpu_pod("rerank", vgpu=1, gpumem=4000)),
        110: lambda: annotate(research, "notebook", "4000Mi"),
        130: lambda: research.create(gpu_pod("whole", vgpu=1, command=("elastic", "15000"))),
        170: lambda: serving_team.delete("chat"),
        190: lambda: annotate(research, "notebook", "8000Mi"),
        _SPAN_S: lambda: None,
    }
    for second, act in acts.items():
        time.sleep(max(0.0, started_s + second - time.monotonic()))
        act()


if __name__ == "__main__":
    sys.exit(main())
