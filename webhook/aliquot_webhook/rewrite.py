# SPDX-License-Identifier: Apache-2.0
"""`rewrite`: a pod that asks for GPU shares becomes a JSON Patch and a claim template, or a refusal.

Pure, total and deterministic: any JSON is an acceptable pod. It computes what the pod should look like from
the resources that stand in it and from those that an earlier pass took out (kept in an annotation), and
patches the difference. So a second pass over its own result changes nothing, a container that was injected
between two passes joins the claim, and a restored copy of a converted pod gets its template again.
"""

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_webhook import checks, patch, pods
from aliquot_webhook.claims import NAME_PREFIX, ClaimTemplate, claim_template
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.patch import Operation
from aliquot_webhook.pods import Container
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import GpuRequest, understand
from aliquot_webhook.wire import JsonObject, items, obj, text


class Reason(enum.StrEnum):
    """Why a pod was refused: a metric label, and the HTTP code of the answer."""

    INVALID = "invalid"
    NOT_READY = "not_ready"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The pod must not be created; `message` is for its author."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Patch:
    """How to convert the pod, and the template that has to exist first (None: only keys are removed)."""

    operations: tuple[Operation, ...]
    template: ClaimTemplate | None
    warnings: tuple[str, ...] = ()


def rewrite(pod: object, policy: Policy, inventory: Inventory) -> Patch | Refusal | None:
    """What to do with `pod` at its creation; None leaves it alone."""
    try:
        return _rewrite(obj(pod), policy, inventory)
    except InvalidInput as error:
        return Refusal(reason=Reason.INVALID, message=str(error))


def _rewrite(pod: JsonObject, policy: Policy, inventory: Inventory) -> Patch | None:
    spec = obj(pod.get("spec"))
    if pods.is_left_alone(pod):
        return None
    claim_index = pods.claim_index(spec)
    record = pods.record_of(pod) if claim_index is not None else {}
    containers = list(pods.containers_of(spec, record, policy))
    pods.refuse_other_places(spec, policy)
    if not containers:
        return None

    warnings: list[str] = []
    requests: list[GpuRequest] = []
    for container in containers:
        warnings += checks.container_warnings(container, policy)
        request = understand(container.stated, container=container.name, names=policy.resources)
        if request is not None:
            checks.check_request(request, container, policy, inventory)
            requests.append(request)
    operations = [operation for container in containers for operation in _removals(container)]
    if not requests:
        return Patch(operations=tuple(operations), template=None, warnings=tuple(warnings))

    checks.check_pod(spec, requests, policy)
    checks.check_names(spec, containers)
    warnings += checks.pod_warnings(spec, inventory)
    template = claim_template(requests, inventory)
    holders = {request.container for request in requests}
    holding = [container for container in containers if container.name in holders]
    operations += _annotation_operations(pod, holding)
    operations += _pod_claim_operations(spec, claim_index, record, template.name)
    for container in holding:
        operations += _container_claim_operations(container)
    return Patch(operations=tuple(operations), template=template, warnings=tuple(warnings))


def _annotation_operations(pod: JsonObject, containers: Sequence[Container]) -> Iterator[Operation]:
    record = {
        container.name: {name: stated.value for name, stated in container.stated.items()}
        for container in containers
    }
    encoded = json.dumps(record, sort_keys=True, separators=(",", ":"))
    metadata = pod.get("metadata")
    annotations = obj(metadata).get("annotations")
    if not isinstance(metadata, dict):
        yield patch.add({"annotations": {names.REQUEST_ANNOTATION: encoded}}, "metadata")
    elif not isinstance(annotations, dict):
        yield patch.add({names.REQUEST_ANNOTATION: encoded}, "metadata", "annotations")
    elif annotations.get(names.REQUEST_ANNOTATION) != encoded:
        yield patch.add(encoded, "metadata", "annotations", names.REQUEST_ANNOTATION)


def _pod_claim_operations(
    spec: JsonObject, index: int | None, record: Mapping[str, object], template: str
) -> Iterator[Operation]:
    entry = {"name": names.POD_CLAIM_NAME, "resourceClaimTemplateName": template}
    claims = spec.get("resourceClaims")
    if index is not None:
        present = obj(items(claims)[index])
        ours = text(present.get("resourceClaimTemplateName")).startswith(NAME_PREFIX)
        if not (record and ours):
            raise InvalidInput(
                field=f"spec.resourceClaims[{index}].name",
                value=names.POD_CLAIM_NAME,
                fix="this name belongs to the claim that Aliquot adds; give yours another one",
            )
        if present != entry:
            yield patch.replace(entry, "spec", "resourceClaims", index)
    elif isinstance(claims, list):
        yield patch.add(entry, "spec", "resourceClaims", "-")
    else:
        yield patch.add([entry], "spec", "resourceClaims")


def _container_claim_operations(container: Container) -> Iterator[Operation]:
    entry = {"name": names.POD_CLAIM_NAME, "request": container.name}
    base = ("spec", "containers", container.index, "resources", "claims")
    claims = container.resources.get("claims")
    index = pods.own_claim(container.resources)
    if index is not None:
        if items(claims)[index] != entry:
            yield patch.replace(entry, *base, index)
    elif isinstance(claims, list):
        yield patch.add(entry, *base, "-")
    else:
        yield patch.add([entry], *base)


def _removals(container: Container) -> Iterator[Operation]:
    for section, name in container.found.places:
        yield patch.remove("spec", "containers", container.index, "resources", section, name)
