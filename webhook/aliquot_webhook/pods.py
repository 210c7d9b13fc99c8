# SPDX-License-Identifier: Apache-2.0
"""Reading a pod: which containers ask for GPUs, what an earlier pass recorded, where our claim stands."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import Found, Stated, find
from aliquot_webhook.wire import JsonObject, dig, items, obj, text

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
HAMI_OPT_OUT: Final = ("hami.io/webhook", "ignore")


@dataclass(frozen=True, slots=True)
class Container:
    """An app container that states, or once stated, handled resources."""

    index: int
    name: str
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


def claim_index(spec: JsonObject) -> int | None:
    """Where the pod has a claim of the name that we use."""
    for index, claim in enumerate(items(spec.get("resourceClaims"))):
        if obj(claim).get("name") == names.POD_CLAIM_NAME:
            return index
    return None


def own_claim(resources: JsonObject) -> int | None:
    """Where a container's resources name our claim."""
    for index, claim in enumerate(items(resources.get("claims"))):
        if obj(claim).get("name") == names.POD_CLAIM_NAME:
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
    """App containers that are, or have to be, converted."""
    handled = policy.resources.all()
    for index, each in enumerate(items(spec.get("containers"))):
        container = obj(each)
        resources = obj(container.get("resources"))
        found = find(resources, path=f"spec.containers[{index}].resources", handled=handled)
        name = text(container.get("name"))
        # LimitRanger runs again after us and puts its defaults back: the record goes before them.
        recorded = record.get(name, {}) if own_claim(resources) is not None else {}
        stated = {key: value for key, value in recorded.items() if key in handled} or found.stated
        if stated:
            yield Container(index=index, name=name, resources=resources, found=found, stated=stated)


def refuse_other_places(spec: JsonObject, policy: Policy) -> None:
    """Handled resources where they cannot be served must not be left in: the pod would wait for ever."""
    handled = policy.resources.all()
    places = [("spec.resources", spec.get("resources"), "ask in the container that uses the GPU")]
    for index, each in enumerate(items(spec.get("initContainers"))):
        fix = "GPUs for init containers are not supported yet; ask in an app container"
        places.append((f"spec.initContainers[{index}].resources", obj(each).get("resources"), fix))
    for path, resources, fix in places:
        for stated in find(obj(resources), path=path, handled=handled).stated.values():
            raise InvalidInput(field=stated.field, value=stated.value, fix=fix)
