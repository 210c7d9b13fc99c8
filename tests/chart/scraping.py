# SPDX-License-Identifier: Apache-2.0
"""How a Prometheus scrapes an installation, as the chart's PodMonitors have it done; what it then lacks."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.system.installation import Installation
from tests.testkit.chart import NAMESPACE
from tests.testkit.prometheus import Server
from tests.testkit.promql import alerts, named, panels, variables

PORTS: Final = {"aliquot-webhook": 8443, "aliquot-controller": 8081, "aliquot-agent": 9410}
SILENT: Final[Mapping[str, str]] = {
    "node: GPUs left out A": "every GPU of the test bed is published",
}
"""Panels without series here, and why."""


def jobs(aliquot: Installation) -> Iterator[dict[str, Any]]:
    """One job for each component, with a target for each of its pods."""
    for name, port in PORTS.items():
        targets = [
            {
                "targets": [f"{pod['status']['podIP']}:{port}"],
                "labels": {
                    "node": pod["spec"]["nodeName"],
                    "namespace": NAMESPACE,
                    "pod": pod["metadata"]["name"],
                },
            }
            for pod in aliquot.bed.list("pods", NAMESPACE, labels=f"app.kubernetes.io/name={name}")
        ]
        job = {"job_name": name, "honor_labels": True, "static_configs": targets}
        secure = {"scheme": "https", "tls_config": {"insecure_skip_verify": True}}
        yield job | (secure if name == "aliquot-webhook" else {})


def silent(server: Server) -> set[str]:
    """Panels and variables that have no series now."""
    asked = [*panels(), *((query, query) for query in variables())]
    return {name for name, query in asked if not server.query(query)}


def missing(server: Server) -> set[str]:
    """Metrics, and labels of metrics, that alerts and panels name and nothing shows."""
    asked = [*((rule["alert"], rule["expr"]) for rule in alerts()), *panels()]
    wanted = {
        (metric, label)
        for name, query in asked
        if name not in SILENT
        for selected, grouped in [named(query)]
        for metric, labels in selected.items()
        for label in labels | grouped | {"job"}
    }
    return {f"{metric}: {label}" for metric, label in wanted if not server.query(f'{metric}{{{label}!=""}}')}
