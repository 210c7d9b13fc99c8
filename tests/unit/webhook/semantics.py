# SPDX-License-Identifier: Apache-2.0
"""The semantics table: docs/semantics.yaml as cases for the tests, and as the page docs/semantics.md.

`python -m tests.unit.webhook.semantics` writes the page.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from aliquot_api.quantity import MIB
from aliquot_webhook.claims import ClaimTemplate
from aliquot_webhook.inventory import Gpu, Inventory
from aliquot_webhook.policy import Policy
from aliquot_webhook.rewrite import Patch, Refusal, rewrite
from tests.unit.webhook.kit import apply, inventory

ROOT: Final = Path(__file__).parents[3]
TABLE: Final = ROOT / "docs" / "semantics.yaml"
PAGE: Final = ROOT / "docs" / "semantics.md"
DEFAULT_SELECTOR: Final = 'device.attributes["gpu.aliquot.dev"].?sharing.orValue("") == "shim"'
OUTCOMES: Final = ("claim", "pod", "warns", "refused")


@dataclass(frozen=True, slots=True)
class Case:
    """One row."""

    name: str
    row: Mapping[str, Any]
    pod: dict[str, Any]
    policy: Policy
    known: Inventory

    @property
    def expected(self) -> dict[str, Any]:
        """What the row says happens."""
        return {key: self.row[key] for key in OUTCOMES if key in self.row}


def table() -> Any:
    """The data file."""
    return yaml.safe_load(TABLE.read_text(encoding="utf-8"))


def cases() -> Iterator[Case]:
    """Every row of the table."""
    data = table()
    clusters = {name: _cluster(each["nodes"]) for name, each in data["clusters"].items()}
    for section in data["sections"]:
        for row in section["cases"]:
            yield Case(
                name=row["case"],
                row=row,
                pod=_pod(row),
                policy=Policy(count_is_distinct=row.get("kubernetes") != 1.35, **row.get("settings", {})),
                known=clusters[row.get("cluster", "mixed")],
            )


def _cluster(nodes: list[list[dict[str, Any]]]) -> Inventory:
    return inventory(
        *(
            [
                Gpu(
                    memory_bytes=gpu["MiB"] * MIB,
                    shares=gpu.get("shares", 16),
                    product=gpu["product"],
                    sharing=gpu.get("sharing", "shim"),
                    time_slice=gpu.get("timeSlice", ""),
                    numa_node=gpu.get("numa"),
                    pcie_root=gpu.get("root"),
                )
                for gpu in node
            ]
            for node in nodes
        )
    )


def _pod(row: Mapping[str, Any]) -> dict[str, Any]:
    """The pod that a row's shorthand stands for."""

    def container(name: str, limits: Mapping[str, Any] | None) -> dict[str, Any]:
        resources = {
            section: {_full(key): str(value) for key, value in given.items()}
            for section, given in (("limits", limits), ("requests", row.get("requests", {}).get(name)))
            if given
        }
        more: dict[str, Any] = row.get("fields", {}).get(name, {})
        return {"name": name, "image": "example/image", "resources": resources, **more}

    initial = [container(name, limits) for name, limits in row.get("init", {}).items()]
    initial += [
        {**container(name, limits), "restartPolicy": "Always"}
        for name, limits in row.get("sidecars", {}).items()
    ]
    metadata = {key: row[key] for key in ("labels", "annotations") if key in row}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": row.get("name", "p"), **metadata},
        "spec": {
            **({"initContainers": initial} if initial else {}),
            "containers": [container(name, limits) for name, limits in row.get("containers", {}).items()],
            **row.get("spec", {}),
        },
    }


def _full(key: str) -> str:
    return key if "/" in key or key in ("cpu", "memory") else f"nvidia.com/{key}"


def outcome(case: Case) -> dict[str, Any]:
    """What `rewrite` does with the pod of a row, in the words of the table."""
    decision = rewrite(case.pod, case.policy, case.known)
    if decision is None:
        return {"pod": ["unchanged"]}
    if isinstance(decision, Refusal):
        return {"refused": decision.message}
    told: dict[str, Any] = {}
    if decision.templates:
        told["claim"] = list(_claims(decision.templates, apply(case.pod, decision.operations)))
    changes = list(_changes(case, decision))
    if changes:
        told["pod"] = changes
    if decision.warnings:
        told["warns"] = list(decision.warnings)
    return told


def _claims(templates: tuple[ClaimTemplate, ...], result: Any) -> Iterator[str]:
    by_template = {
        each["resourceClaimTemplateName"]: each["name"] for each in result["spec"]["resourceClaims"]
    }
    for template in templates:
        name = by_template[template.name]
        prefix = "" if name == "aliquot" else f"claim {name}, "
        devices: Any = template.spec["devices"]
        modes = {
            request: " ".join(
                value if key == "sharing" else f"{key} {value}"
                for key, value in config["opaque"]["parameters"].items()
                if key not in ("apiVersion", "kind")
            )
            for config in devices.get("config", [])
            for request in config["requests"]
        }
        for request in devices["requests"]:
            ways = request.get("firstAvailable") or [request["exactly"]]
            mode = f", config {modes[request['name']]}" if request["name"] in modes else ""
            told = " | ".join(map(brief, ways))
            yield f"{prefix}{request['name']}: {told}{mode}"
        for constraint in devices.get("constraints", []):
            kind = "same" if "matchAttribute" in constraint else "different"
            attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
            yield f"{prefix}{kind} {attribute}: {', '.join(constraint['requests'])}"


def brief(way: Mapping[str, Any]) -> str:
    """One alternative of a request, without loss."""
    capacity = way["capacity"]["requests"]
    amounts = [f"{name} {capacity[name]}" for name in ("memory", "cores", "shares") if name in capacity]
    assert way["deviceClassName"] == "gpu.aliquot.dev"
    assert way["allocationMode"] == "ExactCount"
    assert set(capacity) <= {"memory", "cores", "shares"}
    (selector,) = way["selectors"]
    expression = selector["cel"]["expression"]
    rest = expression.removeprefix(DEFAULT_SELECTOR).removeprefix(" && ")
    rest = re.sub(r'device\.attributes\["gpu\.aliquot\.dev"\]\.\?(\w+)\.orValue\((?:""|-1)\)', r"\1", rest)
    rest = rest.replace('device.attributes["gpu.aliquot.dev"]', "attributes")
    rest = rest.replace('device.capacity["gpu.aliquot.dev"]', "capacity")
    return f"{way['count']} x {', '.join(amounts)}" + (f" where {rest}" if rest else "")


def _changes(case: Case, decision: Patch) -> Iterator[str]:
    """What happens to the pod beyond keys out, claim in, `void` set."""
    result: Any = apply(case.pod, decision.operations)
    if not decision.templates:
        yield "handled resources removed, no claim"
        return
    for section in ("initContainers", "containers"):
        for container in result["spec"].get(section, []):
            for entry in container.get("resources", {}).get("claims", []):
                wanted = {"name": "aliquot", "request": container["name"]}
                if entry["name"].startswith("aliquot") and entry != wanted:
                    request = entry.get("request", "all")
                    yield f"{container['name']} uses {request} of {entry['name']}"
    before, after = case.pod["spec"], result["spec"]
    for key in ("nodeName", "nodeSelector", "schedulerName", "runtimeClassName", "tolerations"):
        if before.get(key) != after.get(key):
            yield f"{key}: {json.dumps(before.get(key))} becomes {json.dumps(after.get(key))}"


def page() -> str:
    """docs/semantics.md."""
    data = table()
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Generated from semantics.yaml: make docs -->",
    ]
    lines += ["# What a pod's GPU request means", "", data["text"].strip(), ""]
    for name, cluster in data["clusters"].items():
        lines.append(f"- `{name}`: {cluster['about']}")
    lines += ["", data["notation"].strip(), ""]
    for section in data["sections"]:
        lines += [f"## {section['title']}", "", section.get("text", "").strip(), ""]
        lines += ["| asks | on HAMi | on Aliquot |", "|---|---|---|"]
        lines += [_row(row) for row in section["cases"]]
        lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _row(row: Mapping[str, Any]) -> str:
    asks = [f"**{row['case']}**"]
    for key, label in (("init", "init container "), ("sidecars", "sidecar "), ("containers", "")):
        for name, limits in row.get(key, {}).items():
            asks.append(f"{label}{_code(name)}: {_limits(limits)}")
    for name, given in row.get("requests", {}).items():
        asks.append(f"requests of {_code(name)}: {_limits(given)}")
    for key in ("annotations", "labels", "spec", "fields", "settings"):
        for name, value in row.get(key, {}).items():
            shown = value if isinstance(value, str) else json.dumps(value)
            asks.append(_code(f"{'' if key == 'annotations' else key + ' '}{name}: {shown}"))
    for key in ("cluster", "kubernetes"):
        if key in row:
            asks.append(f"{key} {row[key]}")
    gets = [_code(line) for line in (*row.get("claim", ()), *row.get("pod", ()))]
    gets += [f"warning: {_text(line)}" for line in row.get("warns", ())]
    if "refused" in row:
        gets.append(f"refused: {_text(row['refused'])}")
    if "note" in row:
        gets.append(_text(row["note"]))
    return f"| {'<br>'.join(asks)} | {_text(row.get('hami', '-'))} | {'<br>'.join(gets)} |"


def _limits(limits: Mapping[str, Any] | None) -> str:
    return ", ".join(_code(f"{key} {value}") for key, value in limits.items()) if limits else "no GPU"


def _code(text: object) -> str:
    shown = str(text).replace("|", "\\|").replace("\n", " ")
    return f"``{shown}``" if "`" in shown else f"`{shown}`"


def _text(text: object) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ").strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
