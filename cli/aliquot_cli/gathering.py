# SPDX-License-Identifier: Apache-2.0
"""Collects from the API server what `aliquot explain` has to know. What the user may not read is left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api import names
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_cli.cards import Card
from aliquot_cli.causes import Facts
from aliquot_cli.cluster import RESOURCES, meta, optional_get, optional_list
from aliquot_cli.fleet import cards_of, our_slices
from aliquot_cli.looks import OUR_CLASSES
from aliquot_webhook.kube import ApiError, ListApi
from aliquot_webhook.probe import probe

AGENT: Final = "app.kubernetes.io/name=aliquot-agent"


@dataclass(frozen=True, slots=True)
class World:
    """What is the same for every pod."""

    slices: Sequence[JsonObject]
    cards: Sequence[Card]
    classes: Mapping[str, Sequence[str]]
    nodes: Sequence[JsonObject]
    pods: Sequence[JsonObject]
    agents: Mapping[str, bool]


def look_at_world(api: ListApi, *, system_namespace: str) -> World:
    """The cluster's GPUs and nodes."""
    slices = our_slices(api)
    found = cards_of(api, slices)
    classes = {
        meta(each, "name"): tuple(
            text(dig(selector, "cel", "expression")) for selector in items(dig(each, "spec", "selectors"))
        )
        for each in _classes(api)
    }
    nodes = optional_list(api, "/api/v1/nodes") or [
        {"metadata": {"name": name}} for name in dict.fromkeys(card.node for card in found)
    ]
    return World(
        slices=slices,
        cards=found,
        classes=classes,
        nodes=nodes,
        pods=optional_list(api, "/api/v1/pods"),
        agents=agents(api, system_namespace),
    )


def _classes(api: ListApi) -> list[JsonObject]:
    """All DeviceClasses; of a user who may not list them, ours."""
    found = optional_list(api, f"{RESOURCES}/deviceclasses")
    if found:
        return found
    ours = (optional_get(api, f"{RESOURCES}/deviceclasses/{name}") for name in OUR_CLASSES)
    return [each for each in ours if each is not None]


def agents(api: ListApi, namespace: str) -> dict[str, bool]:
    """Nodes with an agent, and whether it is ready."""
    found: dict[str, bool] = {}
    path = f"/api/v1/namespaces/{namespace}/pods"
    for pod in optional_list(api, path, {"labelSelector": AGENT}):
        node = text(dig(pod, "spec", "nodeName"))
        found[node] = found.get(node, False) or is_ready(pod)
    return found


def is_ready(of: JsonObject) -> bool:
    """Whether a pod's condition Ready is true."""
    return any(
        dig(each, "type") == "Ready" and dig(each, "status") == "True"
        for each in items(dig(of, "status", "conditions"))
    )


def gate_problem(api: ListApi, namespace: str) -> str:
    """That the API server drops what shares are made of; empty where it does not, or we may not ask."""
    try:
        problem = probe(api, namespace=namespace).problem or ""
    except ApiError:
        return ""
    return problem if names.CONSUMABLE_CAPACITY_GATE in problem else ""


def facts_of(
    api: ListApi, pod: JsonObject, world: World, *, known: Mapping[str, JsonObject] | None = None
) -> Facts:
    """What there is to know about one pod; `known` are specs of templates and claims that are not created."""
    namespace = meta(pod, "namespace")
    claims, specs = {}, {}
    statuses = {
        text(dig(each, "name")): text(dig(each, "resourceClaimName"))
        for each in items(dig(pod, "status", "resourceClaimStatuses"))
    }
    for entry in map(obj, items(dig(pod, "spec", "resourceClaims"))):
        name = text(entry.get("name"))
        claim_name = text(entry.get("resourceClaimName")) or statuses.get(name, "")
        template = text(entry.get("resourceClaimTemplateName"))
        base = f"{RESOURCES}/namespaces/{namespace}"
        claim = optional_get(api, f"{base}/resourceclaims/{claim_name}") if claim_name else None
        spec = obj(claim.get("spec")) if claim else (known or {}).get(template or claim_name)
        if spec is None and template:
            found = optional_get(api, f"{base}/resourceclaimtemplates/{template}")
            spec = obj(dig(found, "spec", "spec")) if found else None
        specs[name] = spec
        if claim is not None:
            claims[name] = claim
    return Facts(
        pod=pod,
        events=events_of(api, namespace, [pod, *claims.values()]),
        specs=specs,
        claims=claims,
        classes=world.classes,
        nodes=world.nodes,
        others=[other for other in world.pods if meta(other, "uid") != meta(pod, "uid")],
        cards=world.cards,
        namespace=optional_get_allowed(api, f"/api/v1/namespaces/{namespace}") or {},
        gate_problem=gate_problem(api, namespace),
        agents=world.agents,
    )


def optional_get_allowed(api: ListApi, path: str) -> JsonObject | None:
    """One object; None where there is none, or the user may not read it."""
    try:
        return optional_get(api, path)
    except ApiError as error:
        if error.status == 403:
            return None
        raise


def events_of(api: ListApi, namespace: str, about: Sequence[JsonObject]) -> list[JsonObject]:
    """The events about these objects, oldest first."""
    found = []
    for uid in (meta(each, "uid") for each in about):
        if uid:
            query = {"fieldSelector": f"involvedObject.uid={uid}"}
            found += optional_list(api, f"/api/v1/namespaces/{namespace}/events", query)
    return sorted(
        found, key=lambda event: text(event.get("lastTimestamp")) or meta(event, "creationTimestamp")
    )
