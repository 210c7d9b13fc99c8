# SPDX-License-Identifier: Apache-2.0
"""Reading a pod: which containers ask for GPUs, what an earlier pass recorded, where our claim stands."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import Found, Stated, find
from aliquot_webhook.values import value

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
LIMIT_RANGER: Final = "kubernetes.io/limit-ranger"
"""Where LimitRanger writes which defaults it has set."""
HAMI_OPT_OUT: Final = ("hami.io/webhook", "ignore")
SECTIONS: Final[tuple[Literal["containers", "initContainers"], ...]] = ("containers", "initContainers")
"""Where a pod can have GPUs; ephemeral containers cannot have resources."""
_LABEL_LENGTH: Final = 63


@value
class Container:
    """A container that states, or once stated, handled resources."""

    section: Literal["containers", "initContainers"]
    index: int
    name: str
    is_sequential: bool
    """An init container that ends before the app containers start (a sidecar does not)."""
    resources: JsonObject
    found: Found
    stated: Mapping[str, Stated]
    """What counts: the earlier pass's record if there is one, else what stands there."""


def is_left_alone(pod: JsonObject) -> bool:
    """Opted out, or the image of a static pod, which cannot have claims."""
    labels = obj(dig(pod, "metadata", "labels"))
    return (
        labels.get(names.INJECT_LABEL) == names.INJECT_DISABLED
        or labels.get(HAMI_OPT_OUT[0]) == HAMI_OPT_OUT[1]
        or MIRROR_ANNOTATION in obj(dig(pod, "metadata", "annotations"))
    )


def own_claim_name(container: str) -> str:
    """The name, in the pod, of a claim that only this container uses; a DNS label whatever the length."""
    name = f"{names.POD_CLAIM_NAME}-{container}"
    if len(name) <= _LABEL_LENGTH:
        return name
    digest = hashlib.sha256(container.encode(errors="replace")).hexdigest()[:8]
    return f"{name[: _LABEL_LENGTH - 9].rstrip('-')}-{digest}"


def is_default(pod: JsonObject, container: str, resource: str) -> bool:
    """Whether LimitRanger put this resource into the container, by what it writes about that: "LimitRanger
    plugin set: nvidia.com/gpumem limit for container main; cpu request for init container first"."""
    told = text(obj(dig(pod, "metadata", "annotations")).get(LIMIT_RANGER))
    return any(
        part.endswith(f" container {container}") and resource in part.replace(",", " ").split()
        for part in told.split(";")
    )


def has_claim(spec: JsonObject) -> bool:
    """Whether the pod has a claim of a name that we may have given."""
    return any(
        text(obj(claim).get("name")).startswith(names.POD_CLAIM_NAME)
        for claim in items(spec.get("resourceClaims"))
    )


def own_names(record: Collection[str]) -> frozenset[str]:
    """The names that our claims have in a pod whose GPU containers are those of the record."""
    return frozenset((names.POD_CLAIM_NAME, *map(own_claim_name, record)))


def own_entry(resources: JsonObject, ours: frozenset[str]) -> int | None:
    """Where a container's resources name one of our claims."""
    for index, claim in enumerate(items(resources.get("claims"))):
        if obj(claim).get("name") in ours:
            return index
    return None


def record_of(pod: JsonObject) -> dict[str, dict[str, Stated]]:
    """What an earlier pass took out, by container; nothing if none was here."""
    field = f"metadata.annotations[{names.REQUEST_ANNOTATION}]"
    annotation = obj(dig(pod, "metadata", "annotations")).get(names.REQUEST_ANNOTATION)
    if annotation is None:
        return {}
    try:
        decoded = json.loads(text(annotation))
    except (ValueError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict) or not all(
        isinstance(values, dict) and all(isinstance(value, str) for value in values.values())
        for values in decoded.values()
    ):
        raise InvalidInput(
            field=field,
            value=text(annotation)[:64],
            fix=f"this annotation is written by Aliquot; remove it and the claim {names.POD_CLAIM_NAME!r}",
        )
    return {
        container: {
            name: Stated(value=value, field=f"{field}.{container}[{name}]") for name, value in values.items()
        }
        for container, values in decoded.items()
    }


def containers_of(
    spec: JsonObject, record: Mapping[str, Mapping[str, Stated]], policy: Policy
) -> Iterator[Container]:
    """Containers that are, or have to be, converted."""
    handled = policy.resources.all()
    ours = own_names(record)
    for section in SECTIONS:
        for index, each in enumerate(items(spec.get(section))):
            container = obj(each)
            resources = obj(container.get("resources"))
            if not resources:
                continue
            found = find(resources, path=f"spec.{section}[{index}].resources", handled=handled)
            name = text(container.get("name"))
            # LimitRanger runs again after us and puts its defaults back: the record goes before them.
            stated = found.stated
            if record and own_entry(resources, ours) is not None:
                recorded = record.get(name, {})
                stated = {key: value for key, value in recorded.items() if key in handled} or stated
            if stated:
                yield Container(
                    section=section,
                    index=index,
                    name=name,
                    is_sequential=section == "initContainers" and container.get("restartPolicy") != "Always",
                    resources=resources,
                    found=found,
                    stated=stated,
                )


def refuse_pod_level(spec: JsonObject, policy: Policy) -> None:
    """Handled resources of the pod as a whole must not be left in: it would wait for ever."""
    found = find(obj(spec.get("resources")), path="spec.resources", handled=policy.resources.all())
    for stated in found.stated.values():
        raise InvalidInput(
            field=stated.field, value=stated.value, fix="ask in the container that uses the GPU"
        )
