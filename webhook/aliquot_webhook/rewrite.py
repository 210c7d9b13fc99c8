# SPDX-License-Identifier: Apache-2.0
"""`rewrite`: a pod that asks for GPU shares becomes a JSON Patch and claim templates, or a refusal.

Pure, total and deterministic: any JSON is an acceptable pod. It computes what the pod should look like from
the resources that stand in it and from those that an earlier pass took out (kept in an annotation), and
patches the difference. So a second pass over its own result changes nothing, a container that was injected
between two passes joins the claim, and a restored copy of a converted pod gets its templates again.
"""

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_webhook import checks, environment, patch, placement, pods, wishes
from aliquot_webhook.arrange import Arrangement, arrange
from aliquot_webhook.candidates import Candidates, candidates
from aliquot_webhook.claims import NAME_PREFIX, ClaimTemplate
from aliquot_webhook.fitting import NotYetKnown
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.patch import Operation
from aliquot_webhook.pods import Container
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import Meant, Stated, understand
from aliquot_webhook.wishes import Wishes

_RECORD: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


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
    """How to convert the pod, and the templates that have to exist first (none: only keys are removed)."""

    operations: tuple[Operation, ...]
    templates: tuple[ClaimTemplate, ...] = ()
    warnings: tuple[str, ...] = ()


def rewrite(pod: object, policy: Policy, inventory: Inventory) -> Patch | Refusal | None:
    """What to do with `pod` at its creation; None leaves it alone."""
    try:
        return _rewrite(obj(pod), policy, inventory)
    except InvalidInput as error:
        return Refusal(reason=Reason.INVALID, message=str(error))
    except NotYetKnown as error:
        return Refusal(reason=Reason.NOT_READY, message=str(error))


def _rewrite(pod: JsonObject, policy: Policy, inventory: Inventory) -> Patch | None:
    spec = obj(pod.get("spec"))
    if pods.is_left_alone(pod):
        _refuse_borrowed_templates(spec, frozenset())
        return None
    record = pods.record_of(pod) if pods.has_claim(spec) else {}
    containers = list(pods.containers_of(spec, record, policy))
    pods.refuse_pod_level(spec, policy)
    checks.check_number(containers)
    if not containers:
        _refuse_borrowed_templates(spec, frozenset())
        return None

    warnings = [word for each in containers for word in checks.container_warnings(each, policy, pod)]
    wished = _wishes(pod, containers, policy)
    askers = _askers(pod, containers, wished, policy, warnings)
    operations = [
        patch.remove("spec", container.section, container.index, "resources", section, name)
        for container in containers
        for section, name in container.found.places
    ]
    if not askers:
        _refuse_borrowed_templates(spec, frozenset())
        return Patch(operations=tuple(operations), warnings=tuple(warnings))

    checks.check_names(spec, containers)
    if not (inventory.gpus or policy.allow_without_gpus):
        raise NotYetKnown("no node of this cluster has published a GPU; try again when one has")
    checks.check_reach(spec, [asker.request for asker in askers], policy)
    found = candidates(wished.choice, inventory)
    arrangement = _arrangement(askers, wished, found, policy, inventory)
    warnings += [*wished.warnings, *found.warnings, *arrangement.warnings]
    warnings += [*environment.warnings(spec), *placement.warnings(spec)]
    warnings += checks.pod_warnings(spec, inventory)
    holding = [container for container in containers if container.name in arrangement.entries]
    operations += _annotation_operations(pod, holding)
    operations += _pod_claim_operations(spec, record, arrangement)
    ours = pods.own_names(record)
    _refuse_borrowed_templates(spec, ours if record else frozenset())
    for container in holding:
        operations += _container_claim_operations(container, arrangement, ours)
    operations += environment.operations(spec)
    operations += placement.operations(spec)
    templates = tuple(claim.template for claim in arrangement.claims)
    return Patch(operations=tuple(operations), templates=templates, warnings=tuple(warnings))


def _wishes(pod: JsonObject, containers: Sequence[Container], policy: Policy) -> Wishes:
    annotations = obj(dig(pod, "metadata", "annotations"))
    if wishes.KEYS.isdisjoint(annotations):
        return wishes.NONE
    priority = policy.resources.priority
    asking = [each.name for each in containers if each.stated.keys() != {priority}]
    return wishes.read(annotations, asking) if asking else wishes.NONE


def _askers(
    pod: JsonObject, containers: Sequence[Container], wished: Wishes, policy: Policy, warnings: list[str]
) -> list[Meant]:
    askers = []
    for container in containers:
        limit, cores_limit = wished.memory.get(container.name), wished.cores.get(container.name)
        stated = container.stated
        if limit or cores_limit:
            stated = _without_defaults(pod, container, policy, memory=bool(limit), cores=bool(cores_limit))
        meant = understand(
            stated,
            container=container.name,
            policy=policy,
            limit=limit,
            cores_limit=cores_limit,
            alone=wished.alone,
            exclusive=wished.exclusive,
            is_sequential=container.is_sequential,
        )
        if meant is not None:
            warnings += meant.warnings
            askers.append(meant)
    return askers


def _without_defaults(
    pod: JsonObject, container: Container, policy: Policy, *, memory: bool, cores: bool
) -> Mapping[str, Stated]:
    """What counts beside annotations about memory or cores: they go before a namespace's LimitRange."""
    resources = policy.resources
    annotated = [resources.memory, resources.memory_percent] * memory + [resources.cores] * cores
    stated = {
        name: value
        for name, value in container.stated.items()
        if name not in annotated or not pods.is_default(pod, container.name, name)
    }
    if stated.keys() - {resources.priority}:
        return stated
    field = wishes.path(names.ANNOTATION_MEMORY_LIMIT if memory else names.ANNOTATION_CORES)
    return {resources.count: Stated(value=str(policy.default_count), field=field)}


def _arrangement(
    askers: Sequence[Meant], wished: Wishes, found: Candidates, policy: Policy, inventory: Inventory
) -> Arrangement:
    """The claims; of pods without wishes they are remembered, for the next replica will ask the same."""
    if wished is not wishes.NONE:
        return arrange(askers, wished, found, policy)
    question = (policy, tuple([(meant.request, meant.is_sequential) for meant in askers]))
    known = inventory.memo.get(question)
    if not isinstance(known, Arrangement):
        known = arrange(askers, wished, found, policy)
        inventory.memo.put(question, known)
    return known


def _annotation_operations(pod: JsonObject, containers: Sequence[Container]) -> Iterator[Operation]:
    encoded = _RECORD.encode(
        {
            container.name: {name: stated.value for name, stated in container.stated.items()}
            for container in containers
        }
    )
    metadata = pod.get("metadata")
    annotations = obj(metadata).get("annotations")
    if not isinstance(metadata, dict):
        yield patch.add({"annotations": {names.REQUEST_ANNOTATION: encoded}}, "metadata")
    elif not isinstance(annotations, dict):
        yield patch.add({names.REQUEST_ANNOTATION: encoded}, "metadata", "annotations")
    elif annotations.get(names.REQUEST_ANNOTATION) != encoded:
        yield patch.add(encoded, "metadata", "annotations", names.REQUEST_ANNOTATION)


def _pod_claim_operations(
    spec: JsonObject, record: Mapping[str, object], arrangement: Arrangement
) -> Iterator[Operation]:
    wanted = {
        claim.name: {"name": claim.name, "resourceClaimTemplateName": claim.template.name}
        for claim in arrangement.claims
    }
    claims = spec.get("resourceClaims")
    ours = pods.own_names(record)
    surplus = []
    for index, each in enumerate(items(claims)):
        present = obj(each)
        name = text(present.get("name"))
        if name in wanted or name in ours:
            is_made = text(present.get("resourceClaimTemplateName")).startswith(NAME_PREFIX)
            if not (record and is_made):
                if name not in wanted:
                    continue
                raise InvalidInput(
                    field=f"spec.resourceClaims[{index}].name",
                    value=name,
                    fix="this name belongs to a claim that Aliquot adds; give yours another one",
                )
            entry = wanted.pop(name, None)
            if entry is None:
                surplus.append(index)
            elif present != entry:
                yield patch.replace(entry, "spec", "resourceClaims", index)
    # From the end, so that no removal moves another; what is added stands behind.
    for index in reversed(surplus):
        yield patch.remove("spec", "resourceClaims", index)
    if isinstance(claims, list):
        for entry in wanted.values():
            yield patch.add(entry, "spec", "resourceClaims", "-")
    else:
        yield patch.add(list(wanted.values()), "spec", "resourceClaims")


def _container_claim_operations(
    container: Container, arrangement: Arrangement, ours: frozenset[str]
) -> Iterator[Operation]:
    entry = arrangement.entries[container.name]
    base = ("spec", container.section, container.index, "resources", "claims")
    claims = container.resources.get("claims")
    index = pods.own_entry(container.resources, ours) if claims else None
    if index is not None:
        if items(claims)[index] != entry:
            yield patch.replace(entry, *base, index)
    elif isinstance(claims, list):
        yield patch.add(entry, *base, "-")
    else:
        yield patch.add([entry], *base)


def _refuse_borrowed_templates(spec: JsonObject, ours: frozenset[str]) -> None:
    """Claims of our templates are not judged again, so a pod has none but those that it is given here."""
    for index, each in enumerate(items(spec.get("resourceClaims"))):
        template = text(obj(each).get("resourceClaimTemplateName"))
        if template.startswith(NAME_PREFIX) and obj(each).get("name") not in ours:
            raise InvalidInput(
                field=f"spec.resourceClaims[{index}].resourceClaimTemplateName",
                value=template[:64],
                fix=f"templates whose names begin with {NAME_PREFIX} are Aliquot's own; ask for the resources"
                " in the container, or name a template of yours",
            )
