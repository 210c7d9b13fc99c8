# SPDX-License-Identifier: Apache-2.0
"""The memory limit in a running pod's annotation: which requests of which claims it speaks of."""

from collections.abc import Collection, Mapping
from typing import Final

from aliquot_api import names
from aliquot_api.annotations import memory_limits
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text

ANNOTATION: Final = names.ANNOTATION_MEMORY_LIMIT
_KINDS: Final = ("containers", "initContainers")


def annotation_of(pod: JsonObject, key: str = ANNOTATION) -> str | None:
    """What the annotation says; None without one."""
    value = obj(dig(pod, "metadata", "annotations")).get(key)
    return text(value) if value is not None else None


def claim_names(pod: JsonObject) -> dict[str, str]:
    """The names of a pod's claims, by the pod's own names for them; empty for one that is not made yet."""
    made = {
        text(obj(status).get("name")): text(obj(status).get("resourceClaimName"))
        for status in items(dig(pod, "status", "resourceClaimStatuses"))
    }
    found: dict[str, str] = {}
    for entry in items(dig(pod, "spec", "resourceClaims")):
        name = text(obj(entry).get("name"))
        found[name] = text(obj(entry).get("resourceClaimName")) or made.get(name, "")
    return found


def containers_of(spec: JsonObject, claims: Mapping[str, JsonObject]) -> dict[str, list[tuple[str, str]]]:
    """The claims' requests that each container has, by the container's name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for kind in _KINDS:
        for container in items(spec.get(kind)):
            for entry in items(dig(container, "resources", "claims")):
                name = text(obj(entry).get("name"))
                if name not in claims:
                    continue
                one = text(obj(entry).get("request"))
                every = [
                    text(obj(request).get("name"))
                    for request in items(dig(claims[name], "spec", "devices", "requests"))
                ]
                pairs = [(name, each) for each in ([one] if one else every)]
                found.setdefault(text(obj(container).get("name")), []).extend(pairs)
    return found


def wishes(pods: Collection[JsonObject], claims: Mapping[str, JsonObject]) -> dict[str, dict[str, int]]:
    """The largest limit, in bytes, that any of `pods` wishes, by name of the claim (one of `claims`) and of
    its request. An annotation that cannot be read wishes nothing: the agent does not follow it either."""
    found: dict[str, dict[str, int]] = {}
    for pod in pods:
        value = annotation_of(pod)
        if value is None:
            continue
        named = {own: name for own, name in claim_names(pod).items() if name in claims}
        spec = obj(pod.get("spec"))
        everybody = [text(obj(each).get("name")) for kind in _KINDS for each in items(spec.get(kind))]
        try:
            limits = memory_limits(value, field=ANNOTATION, containers=everybody)
        except InvalidInput:
            continue
        for container, held in containers_of(
            spec, {own: claims[name] for own, name in named.items()}
        ).items():
            for own, request in held:
                if container in limits:
                    requests = found.setdefault(named[own], {})
                    requests[request] = max(limits[container], requests.get(request, 0))
    return found
