# SPDX-License-Identifier: Apache-2.0
"""What the node knows, as JSON and as a table: `aliquot-agent status`. Works while the API server is away.

The agent answers it on its own port. Where no agent answers, the command tells what the checkpoints say.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aliquot_agent import health
from aliquot_agent.checkpoint import Checkpoints, PreparedClaim
from aliquot_agent.metrics import Sources
from aliquot_agent.readiness import Readiness
from aliquot_api import names
from aliquot_api.quantity import MIB

_TIMEOUT_S: Final = 5

Document = dict[str, Any]
"""The status as JSON."""


@dataclass(frozen=True, slots=True)
class Status:
    """Makes the document when it is asked for."""

    sources: Sources
    readiness: Readiness
    leader: Callable[[], bool]
    """Whether this agent publishes and watches: in a rolling update only one does."""

    def page(self) -> tuple[str, bytes]:
        """The document over HTTP."""
        return "application/json", (json.dumps(self.document(), indent=1) + "\n").encode()

    def document(self) -> Document:
        """The document."""
        observations = self.sources.picture().observations
        offered = self.sources.offered_bytes()
        conditions = self.sources.conditions()
        left_out = {each.uuid or str(each.index): each for each in self.sources.left_out()}
        return {
            "node": self.sources.node,
            "leader": self.leader(),
            "notReady": self.readiness.reasons(),
            "configProblem": self.sources.config_problem(),
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "name": gpu.product_name,
                    "memory": gpu.memory_bytes,
                    "published": 0 if gpu.uuid in left_out else offered.get(device, 0),
                    "shares": sum(seen.share.gpu_uuid == gpu.uuid for seen in observations),
                    "health": health.explain(conditions.get(gpu.uuid, health.Condition())) or "ok",
                    "leftOut": left_out[gpu.uuid].message if gpu.uuid in left_out else "",
                }
                for device, gpu in sorted(self.sources.gpus().items(), key=lambda item: item[1].index)
            ],
            "leftOut": [
                {"index": each.index, "uuid": each.uuid, "cause": each.cause, "message": each.message}
                for each in left_out.values()
            ],
            "shares": [
                {
                    "namespace": seen.claim.namespace,
                    "claim": seen.claim.name,
                    "request": seen.share.request,
                    "share": seen.share.share,
                    "gpu": seen.share.gpu_uuid,
                    "whole": seen.share.whole,
                    "limit": seen.usage.limit_bytes,
                    "used": seen.usage.used_bytes,
                    "peak": seen.usage.peak_bytes,
                    "denied": seen.usage.denied,
                    "processes": seen.usage.processes,
                    "pods": [f"{user.pod}/{user.container}".rstrip("/") for user in self.sources.users(seen)],
                }
                for seen in observations
            ],
        }


def from_checkpoints(claims: Sequence[PreparedClaim]) -> Document:
    """As much as is known without an agent."""
    return {
        "node": "",
        "leader": False,
        "notReady": {"agent": "no agent answers; this is what its checkpoints say"},
        "configProblem": "",
        "gpus": [],
        "leftOut": [],
        "shares": [
            {
                "namespace": claim.namespace,
                "claim": claim.name,
                "request": share.request,
                "share": share.share,
                "gpu": share.gpu_uuid,
                "whole": share.whole,
                "limit": share.limit,
            }
            for claim in claims
            for share in claim.shares
        ],
    }


def table(document: Mapping[str, Any]) -> str:
    """The document for people."""
    lines = [f"node {document['node'] or '?'}: {'ready' if not document['notReady'] else 'not ready'}"]
    lines += [f"  {part}: {reason}" for part, reason in document["notReady"].items()]
    if document["configProblem"]:
        lines.append(f"  node configuration: {document['configProblem']}")
    gpus = [
        (
            str(gpu["index"]),
            gpu["uuid"],
            gpu["name"],
            _mib(gpu["memory"]),
            _mib(gpu["published"]),
            str(gpu["shares"]),
            gpu["health"] if not gpu["leftOut"] else f"left out: {gpu['leftOut']}",
        )
        for gpu in document["gpus"]
    ]
    known = {gpu["uuid"] for gpu in document["gpus"]}
    gpus += [
        (str(each["index"]), each["uuid"] or "-", "-", "-", "-", "-", f"left out: {each['message']}")
        for each in document["leftOut"]
        if each["uuid"] not in known
    ]
    lines += ["", *_columns(("GPU", "UUID", "NAME", "MEMORY", "PUBLISHED", "SHARES", "STATE"), gpus)]
    shares = [
        (
            share["namespace"],
            share["claim"],
            share["request"],
            share["gpu"],
            "whole" if share["whole"] else _mib(share["limit"]),
            _mib(share.get("used")),
            _mib(share.get("peak")),
            str(share.get("denied", "-")),
            str(share.get("processes", "-")),
            ",".join(share.get("pods", [])) or "-",
        )
        for share in document["shares"]
    ]
    head = ("NAMESPACE", "CLAIM", "REQUEST", "GPU", "LIMIT", "USED", "PEAK", "DENIED", "PROCESSES", "PODS")
    return "\n".join([*lines, "", *_columns(head, shares)]) + "\n"


def main(argv: Sequence[str]) -> int:
    """`aliquot-agent status`; the exit status: 0 ready, 1 not."""
    parser = argparse.ArgumentParser(
        prog="aliquot-agent status", description="Prints what this node knows of its GPUs and shares."
    )
    port = os.environ.get("ALIQUOT_METRICS_PORT", "9410")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--url", default=f"http://localhost:{port}/status", help="of the agent")
    parser.add_argument(
        "--plugin-dir", type=Path, default=Path(names.PLUGIN_DIR), help="checkpoints, where no agent answers"
    )
    given = parser.parse_args(argv)
    try:
        with urllib.request.urlopen(given.url, timeout=_TIMEOUT_S) as answer:
            document: Document = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        document = from_checkpoints(_checkpoints(given.plugin_dir / "claims"))
    sys.stdout.write(json.dumps(document, indent=1) + "\n" if given.json else table(document))
    return 1 if document["notReady"] else 0


def _checkpoints(directory: Path) -> tuple[PreparedClaim, ...]:
    try:
        return Checkpoints(directory=directory).peek()
    except OSError:
        return ()


def _mib(bytes_: int | None) -> str:
    return "-" if bytes_ is None else f"{bytes_ // MIB}Mi"


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in [head, *rows]
    ]
    return [line.rstrip() for line in lines]
