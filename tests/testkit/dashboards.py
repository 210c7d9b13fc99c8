# SPDX-License-Identifier: Apache-2.0
"""Writes the chart's Grafana dashboards from the queries below: python -m tests.testkit.dashboards

`max by (node, gpu_uuid)`: while an agent is being replaced, two of them show the same GPU.
"""

from typing import Final

from tests.testkit.chart import CHART
from tests.testkit.grafana import Dashboard, Panel, document

FOLDER: Final = CHART / "files/dashboards"


def _gpu(metric: str, where: str = "") -> str:
    return f"max by (node, gpu_uuid) (aliquot_gpu_{metric}{where})"


def _share(metric: str, where: str) -> str:
    return f"aliquot_share_{metric}{where}"


def _sum(expression: str, by: str = "") -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"


_TENANT: Final = '{namespace=~"$namespace"}'
_CLAIM: Final = '{namespace=~"$namespace", claim=~"$claim"}'
_ON_GPU: Final = '{node=~"$node", gpu_uuid=~"$gpu"}'
_NAMESPACES: Final = ("namespace", "label_values(aliquot_share_memory_limit_bytes, namespace)")
_POD: Final = "{{namespace}}/{{pod}}"
_CARD: Final = "{{node}} {{gpu_uuid}}"

FLEET: Final = Dashboard(
    name="fleet",
    title="Aliquot / Fleet",
    panels=(
        Panel("GPUs", [("", f"count({_gpu('memory_bytes')})")], kind="stat", width=4),
        Panel(
            "Tainted",
            [("", f"count({_gpu('memory_bytes')}) - {_sum(_gpu('healthy'))}")],
            kind="stat",
            width=4,
        ),
        Panel("Shares", [("", _sum(_gpu("shares")))], kind="stat", width=4),
        Panel(
            "Allocated",
            [("", f"{_sum(_gpu('memory_allocated_bytes'))} / {_sum(_gpu('memory_published_bytes'))}")],
            unit="percentunit",
            kind="stat",
            width=4,
        ),
        Panel(
            "Wasted",
            kind="stat",
            width=4,
            unit="bytes",
            text="Memory that shares hold and do not use.",
            queries=[
                (
                    "",
                    f"{_sum('aliquot_share_memory_limit_bytes')} - {_sum('aliquot_share_memory_used_bytes')}",
                )
            ],
        ),
        Panel(
            "Largest free piece",
            [("", f"max({_gpu('memory_free_bytes')})")],
            unit="bytes",
            kind="stat",
            width=4,
            text="The largest share that some GPU still has memory for.",
        ),
        Panel(
            "Memory: published, allocated, used",
            unit="bytes",
            queries=[
                ("published", _sum(_gpu("memory_published_bytes"))),
                ("allocated", _sum(_gpu("memory_allocated_bytes"))),
                ("used", _sum(_gpu("memory_used_bytes"))),
            ],
        ),
        Panel(
            "Fragmentation",
            unit="percentunit",
            text="Part of the free memory that lies on GPUs with shares: a whole GPU cannot come of it.",
            queries=[
                (
                    "on GPUs with shares",
                    f"{_sum(_gpu('memory_free_bytes') + ' * (' + _gpu('shares') + ' > bool 0)')}"
                    f" / {_sum(_gpu('memory_free_bytes'))}",
                )
            ],
        ),
        Panel(
            "Allocated by namespace",
            [("{{namespace}}", _sum("aliquot_share_memory_limit_bytes", "namespace"))],
            unit="bytes",
        ),
        Panel(
            "Wasted by namespace",
            unit="bytes",
            queries=[
                (
                    "{{namespace}}",
                    f"{_sum('aliquot_share_memory_limit_bytes', 'namespace')}"
                    f" - {_sum('aliquot_share_memory_used_bytes', 'namespace')}",
                )
            ],
        ),
        Panel(
            "GPU utilization by node",
            [("{{node}}", f"avg by (node) ({_gpu('utilization_percent')})")],
            unit="percent",
        ),
        Panel(
            "Admission reviews",
            unit="reqps",
            queries=[
                ("{{kind}} {{result}}", "sum by (kind, result) (rate(aliquot_webhook_reviews_total[5m]))")
            ],
        ),
        Panel(
            "Time to prepare a claim (95 %)",
            unit="s",
            queries=[
                ("", "histogram_quantile(0.95, sum by (le) (rate(aliquot_prepare_seconds_bucket[15m])))")
            ],
        ),
        Panel("Stale claims", [("", "max(aliquot_controller_stale_claims)")]),
    ),
)

NAMESPACE: Final = Dashboard(
    name="namespace",
    title="Aliquot / Namespace",
    variables=(_NAMESPACES,),
    panels=(
        Panel(
            "Who has what",
            [("", _sum(_share("memory_limit_bytes", _TENANT), "namespace, pod, claim, gpu_uuid"))],
            unit="bytes",
            kind="table",
            width=24,
        ),
        Panel(
            "Memory limit by pod",
            [(_POD, _sum(_share("memory_limit_bytes", _TENANT), "namespace, pod"))],
            unit="bytes",
        ),
        Panel(
            "Memory used by pod",
            [(_POD, _sum(_share("memory_used_bytes", _TENANT), "namespace, pod"))],
            unit="bytes",
        ),
        Panel(
            "Memory of the budget",
            unit="bytes",
            queries=[
                (
                    "{{namespace}} {{kind}}",
                    'max by (namespace, kind) (aliquot_budget{namespace=~"$namespace", resource="memory"})',
                )
            ],
        ),
        Panel(
            "Budget used",
            unit="percentunit",
            queries=[
                (
                    "{{namespace}} {{resource}}",
                    'max by (namespace, resource) (aliquot_budget{namespace=~"$namespace", kind="used"})'
                    " / max by (namespace, resource)"
                    ' (aliquot_budget{namespace=~"$namespace", kind="limit"} > 0)',
                )
            ],
        ),
        Panel(
            "GPU time used",
            unit="percentunit",
            text="1 is one GPU all the time.",
            queries=[
                (_POD, f"sum by (namespace, pod) (rate({_share('gpu_used_seconds_total', _TENANT)}[5m]))")
            ],
        ),
        Panel(
            "Memory requests refused by the limit",
            unit="ops",
            queries=[(_POD, f"sum by (namespace, pod) (rate({_share('denied_total', _TENANT)}[5m]))")],
        ),
    ),
)

NODE: Final = Dashboard(
    name="node",
    title="Aliquot / Node and GPU",
    variables=(
        ("node", "label_values(aliquot_gpu_memory_bytes, node)"),
        ("gpu", 'label_values(aliquot_gpu_memory_bytes{node=~"$node"}, gpu_uuid)'),
    ),
    panels=(
        Panel("Healthy", [(_CARD, _gpu("healthy", _ON_GPU))], kind="stat", width=8),
        Panel("Shares", [(_CARD, _gpu("shares", _ON_GPU))], kind="stat", width=8),
        Panel("Free", [(_CARD, _gpu("memory_free_bytes", _ON_GPU))], unit="bytes", kind="stat", width=8),
        Panel("Memory allocated", [(_CARD, _gpu("memory_allocated_bytes", _ON_GPU))], unit="bytes"),
        Panel("Memory used", [(_CARD, _gpu("memory_used_bytes", _ON_GPU))], unit="bytes"),
        Panel("Utilization", [(_CARD, _gpu("utilization_percent", _ON_GPU))], unit="percent"),
        Panel("Memory outside any share", [(_CARD, _gpu("memory_outside_bytes", _ON_GPU))], unit="bytes"),
        Panel(
            "Shares on it",
            [("", _sum(_share("memory_used_bytes", '{gpu_uuid=~"$gpu"}'), "namespace, pod, gpu_uuid"))],
            unit="bytes",
            kind="table",
            width=24,
        ),
        Panel(
            "Processes that no ledger knows",
            [(_CARD, f"max by (node, gpu_uuid) (aliquot_unaccounted_processes{_ON_GPU})")],
        ),
        Panel(
            "Writes of the ResourceSlice",
            unit="ops",
            queries=[
                (
                    "{{node}} {{verb}}",
                    'sum by (node, verb) (rate(aliquot_slice_writes_total{node=~"$node"}[15m]))',
                )
            ],
        ),
        Panel(
            "Failed calls of kubelet",
            unit="ops",
            queries=[
                (
                    "{{node}} {{call}}",
                    'sum by (node, call) (rate(aliquot_failures_total{node=~"$node"}[15m]))',
                )
            ],
        ),
        Panel("GPUs left out", [("{{node}} {{index}} {{cause}}", 'aliquot_gpu_left_out{node=~"$node"}')]),
    ),
)

CLAIM: Final = Dashboard(
    name="claim",
    title="Aliquot / Claim",
    variables=(
        _NAMESPACES,
        ("claim", 'label_values(aliquot_share_memory_limit_bytes{namespace=~"$namespace"}, claim)'),
    ),
    panels=(
        Panel(
            "Memory",
            unit="bytes",
            queries=[
                (f"{{{{share}}}} {name}", _share(f"memory_{name}_bytes", _CLAIM))
                for name in ("limit", "used", "peak")
            ],
        ),
        Panel("Driver beyond ledger", [("{{share}}", _share("drift_bytes", _CLAIM))], unit="bytes"),
        Panel("Processes", [("{{share}}", _share("processes", _CLAIM))]),
        Panel(
            "Memory requests refused by the limit",
            [("{{share}}", f"rate({_share('denied_total', _CLAIM)}[5m])")],
            unit="ops",
        ),
        Panel(
            "GPU time",
            unit="percentunit",
            queries=[
                ("{{share}} used", f"rate({_share('gpu_used_seconds_total', _CLAIM)}[5m])"),
                ("{{share}} granted", f"rate({_share('gpu_granted_seconds_total', _CLAIM)}[5m])"),
            ],
        ),
        Panel(
            "Held back",
            [("{{share}}", f"rate({_share('throttled_seconds_total', _CLAIM)}[5m])")],
            unit="percentunit",
        ),
        Panel(
            "Cores: reserved and lent",
            unit="percent",
            queries=[
                ("{{share}} reserved", _share("cores_percent", _CLAIM)),
                ("{{share}} lent", _share("cores_lent_percent", _CLAIM)),
            ],
        ),
        Panel("Price correction", [("{{share}}", _share("cost_factor", _CLAIM))]),
        Panel("Escapes its pacing", [("{{share}}", _share("pacing_escaped", _CLAIM))]),
        Panel(
            "Over quota", [("{{share}} {{action}}", f"increase({_share('over_quota_total', _CLAIM)}[15m])")]
        ),
    ),
)

ALL: Final = (FLEET, NAMESPACE, NODE, CLAIM)


if __name__ == "__main__":
    for each in ALL:
        (FOLDER / f"{each.name}.json").write_text(document(each))
