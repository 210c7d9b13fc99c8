# SPDX-License-Identifier: Apache-2.0
"""`aliquot report`: what each namespace holds of GPU memory, and how much of it it uses.

Over time from a Prometheus that scrapes the agents; without one, as it is now.
"""

import argparse
import csv
import io
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api.errors import InvalidInput
from aliquot_api.wire import dig, items, text
from aliquot_cli import output
from aliquot_cli.cards import Card
from aliquot_cli.cluster import add_cluster_options, command, connect
from aliquot_cli.fleet import read_cards
from aliquot_cli.output import percent, size

_TENANTS: Final = 'sum by (namespace) (label_replace(%s, "namespace", "$1", "exported_namespace", "(.+)"))'
"""Where a scrape adds a label `namespace` of its own, that of the tenant is called exported_namespace."""
ALLOCATED: Final = _TENANTS % "aliquot_share_memory_limit_bytes"
USED: Final = _TENANTS % "aliquot_share_memory_used_bytes"
_TIMEOUT_S: Final = 30
_GIB_HOUR: Final = 1024**3 * 3600
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One namespace."""

    namespace: str
    allocated_bytes: float
    """On average."""
    used_bytes: float
    hours: float
    """How long it held anything; 0 for a look at one moment."""

    @property
    def wasted_bytes(self) -> float:
        """Held and not used."""
        return max(0.0, self.allocated_bytes - self.used_bytes)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `report`."""
    parser = commands.add_parser("report", help="GPU memory held and wasted, by namespace")
    add_cluster_options(parser, namespaced=False)
    output.add_output_option(parser, "csv")
    parser.add_argument("--prometheus", metavar="URL", help="one that scrapes the agents; without: now")
    parser.add_argument("--since", default="24h", metavar="TIME", help="how far back: 90m, 24h, 7d (24h)")
    parser.set_defaults(run=command(run))


def run(arguments: argparse.Namespace) -> int:
    """`aliquot report`."""
    if arguments.prometheus:
        span_s = duration_s(arguments.since)
        rows = over_time(lambda query: query_range(arguments.prometheus, query, span_s), span_s)
    else:
        rows = at_once(read_cards(connect(arguments)))
    printer = output.printer(arguments.output)
    if printer.for_people:
        printer.text(render(rows))
    elif arguments.output == "csv":
        printer.text(as_csv(rows))
    else:
        printer.document([_document(row) for row in rows])
    return 0


def duration_s(written: str) -> int:
    """`90m` in seconds. Raises InvalidInput."""
    match = re.fullmatch(r"([1-9]\d*)([smhdw])", written)
    if match is None:
        raise InvalidInput(
            field="--since", value=written, fix="want a number and s, m, h, d or w, such as 24h"
        )
    return int(match[1]) * _UNITS[match[2]]


def at_once(cards: Sequence[Card]) -> list[Row]:
    """As it is now."""
    held: dict[str, tuple[int, int]] = {}
    for share in (share for card in cards for share in card.shares):
        allocated, used = held.get(share.namespace, (0, 0))
        held[share.namespace] = allocated + share.memory_bytes, used + (share.used_bytes or 0)
    return _sorted([Row(namespace, *amounts, hours=0.0) for namespace, amounts in held.items()])


Series = Mapping[str, Sequence[float]]
"""Values by namespace, at equal distances; only where there are any."""


def over_time(ask: Callable[[str], Series], span_s: int) -> list[Row]:
    """Averages while something was held."""
    allocated, used = ask(ALLOCATED), ask(USED)
    step_s = step(span_s)
    rows = []
    for namespace, values in allocated.items():
        if values:
            uses = used.get(namespace, ())
            average = sum(values) / len(values)
            rows.append(Row(namespace, average, sum(uses) / len(values), hours=len(values) * step_s / 3600))
    return _sorted(rows)


def step(span_s: int) -> int:
    """Seconds between two points of a range."""
    return max(1, -(-span_s // _POINTS))


def query_range(url: str, query: str, span_s: int) -> Series:
    """A range from Prometheus' HTTP API. Raises InvalidInput where it does not answer."""
    now = int(time.time())
    words = {"query": query, "start": now - span_s, "end": now, "step": step(span_s)}
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(words)}"
    if not address.startswith(("http://", "https://")):
        raise InvalidInput(field="--prometheus", value=url, fix="want http://HOST:PORT or https://…")
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
            body = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise InvalidInput(field="--prometheus", value=url, fix=f"it does not answer: {error}") from error
    return {
        text(dig(series, "metric", "namespace")): [
            float(text(pair[1])) for pair in items(dig(series, "values")) if isinstance(pair, list)
        ]
        for series in items(dig(body, "data", "result"))
    }


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """Most waste first."""
    return sorted(rows, key=lambda row: (-row.wasted_bytes, row.namespace))


def render(rows: Sequence[Row]) -> str:
    """For people."""
    if not rows:
        return "no namespace holds GPU memory\n"
    head = ("NAMESPACE", "HELD", "USED", "WASTED", "", "GiB-HOURS HELD")
    return output.table(
        head,
        [
            (
                row.namespace,
                size(round(row.allocated_bytes)),
                size(round(row.used_bytes)),
                size(round(row.wasted_bytes)),
                percent(row.wasted_bytes, row.allocated_bytes),
                f"{row.allocated_bytes * row.hours * 3600 / _GIB_HOUR:.1f}" if row.hours else "-",
            )
            for row in rows
        ],
    )


def as_csv(rows: Sequence[Row]) -> str:
    """For spreadsheets."""
    stream = io.StringIO()
    fields = list(_document(Row("", 0, 0, 0)))
    writer = csv.DictWriter(stream, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_document(row) for row in rows)
    return stream.getvalue()


def _document(row: Row) -> dict[str, object]:
    return {
        "namespace": row.namespace,
        "allocatedBytes": round(row.allocated_bytes),
        "usedBytes": round(row.used_bytes),
        "wastedBytes": round(row.wasted_bytes),
        "hours": round(row.hours, 2),
    }
