# SPDX-License-Identifier: Apache-2.0
"""Whether a node takes a pod, GPUs aside, as the scheduler's filters decide it. Pure.

Names, selectors, affinity, taints, cpu and other counted resources; not volumes, ports and spreading, of
which the scheduler's own words are shown.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli.cluster import meta

_HARD: Final = ("NoSchedule", "NoExecute")


def refusals(pod: JsonObject, node: JsonObject, others: Sequence[JsonObject]) -> list[str]:
    """Why `node` does not take `pod`; empty where it does. `others` are the pods of all nodes."""
    spec = obj(pod.get("spec"))
    found = [_unschedulable(spec, node), *_taints(spec, node), _selector(spec, node), _affinity(spec, node)]
    return [reason for reason in (*found, *_resources(spec, node, others)) if reason]


def _unschedulable(spec: JsonObject, node: JsonObject) -> str:
    if dig(node, "spec", "unschedulable") is True and not _tolerates(
        spec, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    ):
        return "it is cordoned (kubectl uncordon)"
    return ""


def _taints(spec: JsonObject, node: JsonObject) -> Iterable[str]:
    for taint in map(obj, items(dig(node, "spec", "taints"))):
        if taint.get("key") == "node.kubernetes.io/unschedulable":
            continue
        if taint.get("effect") in _HARD and not _tolerates(spec, taint):
            value = f"={taint['value']}" if taint.get("value") else ""
            name = f"{taint.get('key')}{value}:{taint.get('effect')}"
            yield f"it has the taint {name}, which the pod does not tolerate"


def _tolerates(spec: JsonObject, taint: JsonObject) -> bool:
    return tolerated(items(spec.get("tolerations")), taint)


def tolerated(tolerations: Sequence[object], taint: JsonObject) -> bool:
    """Whether one of `tolerations` covers `taint` (core/v1 and resource.k8s.io/v1 say it alike)."""
    for each in map(obj, tolerations):
        if each.get("effect") not in (None, "", taint.get("effect")):
            continue
        if each.get("operator") == "Exists":
            if each.get("key") in (None, "", taint.get("key")):
                return True
        elif each.get("key") == taint.get("key") and (each.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def _selector(spec: JsonObject, node: JsonObject) -> str:
    labels = obj(dig(node, "metadata", "labels"))
    wrong = [
        f"{key}={value}" for key, value in obj(spec.get("nodeSelector")).items() if labels.get(key) != value
    ]
    return f"it lacks the label {', '.join(wrong)} of the pod's nodeSelector" if wrong else ""


def _affinity(spec: JsonObject, node: JsonObject) -> str:
    required = dig(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = items(dig(required, "nodeSelectorTerms"))
    if terms and not any(matches_term(obj(term), node) for term in terms):
        return "it does not match the pod's required node affinity"
    return ""


def matches_term(term: JsonObject, node: JsonObject) -> bool:
    """Whether a node matches a NodeSelectorTerm; an empty one matches none."""
    labels = obj(dig(node, "metadata", "labels"))
    fields = {"metadata.name": meta(node, "name")}
    wanted = [(obj(each), labels) for each in items(term.get("matchExpressions"))]
    wanted += [(obj(each), fields) for each in items(term.get("matchFields"))]
    return bool(wanted) and all(_matches(expression, values) for expression, values in wanted)


def _matches(expression: JsonObject, labels: Mapping[str, object]) -> bool:
    key, operator = text(expression.get("key")), expression.get("operator")
    values = items(expression.get("values"))
    value = labels.get(key)
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) is (operator == "Exists")
    if operator in ("Gt", "Lt"):
        try:
            number, limit = int(text(value)), int(text(values[0]))
        except (ValueError, IndexError):
            return False
        return number > limit if operator == "Gt" else number < limit
    return (key in labels and value in values) is (operator == "In")


def _resources(spec: JsonObject, node: JsonObject, others: Sequence[JsonObject]) -> Iterable[str]:
    allocatable = obj(dig(node, "status", "allocatable"))
    wanted = requests_of(spec)
    here = [
        other
        for other in others
        if dig(other, "spec", "nodeName") == meta(node, "name")
        and dig(other, "status", "phase") not in ("Succeeded", "Failed")
    ]
    if allocatable and len(here) >= _milli(text(allocatable.get("pods"))) // 1000:
        yield f"it has all the pods that it may have ({len(here)})"
    for name, milli in wanted.items():
        if not allocatable or milli == 0:
            continue
        has = _milli(text(allocatable.get(name, "0")))
        taken = sum(requests_of(obj(other.get("spec"))).get(name, 0) for other in here)
        if milli > has - taken:
            yield f"it has too little {name}: {_shown(name, milli)} wanted, {_shown(name, has - taken)} free"


def requests_of(spec: JsonObject) -> dict[str, int]:
    """What a pod asks for, in thousandths: containers together, or the largest init container."""
    total: dict[str, int] = {}
    initial = items(spec.get("initContainers"))
    sidecars = [each for each in initial if dig(each, "restartPolicy") == "Always"]
    for container in (*items(spec.get("containers")), *sidecars):
        for name, milli in _requests(container).items():
            total[name] = total.get(name, 0) + milli
    for container in initial:
        for name, milli in _requests(container).items():
            total[name] = max(total.get(name, 0), milli)
    for name, milli in _quantities(spec.get("overhead")).items():
        total[name] = total.get(name, 0) + milli
    return total


def _requests(container: object) -> dict[str, int]:
    resources = obj(obj(container).get("resources"))
    return _quantities({**obj(resources.get("limits")), **obj(resources.get("requests"))})


def _quantities(written: object) -> dict[str, int]:
    return {name: _milli(str(value)) for name, value in obj(written).items()}


def _milli(written: str) -> int:
    try:
        return (
            quantity.parse(f"{written[:-1]}", field="")
            if written.endswith("m")
            else 1000 * quantity.parse(written, field="")
        )
    except InvalidInput:
        return 0


def _shown(name: str, milli: int) -> str:
    if name == "cpu":
        return f"{milli}m"
    return (
        f"{milli // 1000 // quantity.MIB}Mi"
        if name in ("memory", "ephemeral-storage")
        else str(milli // 1000)
    )
