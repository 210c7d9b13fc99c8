# SPDX-License-Identifier: Apache-2.0
"""`restore`: an update that puts a converted pod's original request back in gets the converted form again.

`kubectl apply` of the manifest that a running pod came from adds the handled resources to a pod that has a
claim in their place, and the server refuses it: both are immutable. What says the same as the request that
was converted is taken out again, and what the merge has replaced stands as it stood.
"""

from collections.abc import Iterator, Mapping

from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, items, obj, text
from aliquot_webhook import environment, patch, placement, pods
from aliquot_webhook.patch import Operation
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import Stated, find
from aliquot_webhook.rewrite import Patch, Reason, Refusal


def restore(pod: object, old: object, policy: Policy) -> Patch | Refusal | None:
    """What to do with an update of `old` to `pod`; None leaves it alone."""
    try:
        before, after = obj(obj(old).get("spec")), obj(obj(pod).get("spec"))
        record = pods.record_of(obj(old)) if pods.has_claim(before) else {}
        if not record:
            return None
        operations = tuple(_operations(before, after, record, policy))
    except InvalidInput as error:
        return Refusal(reason=Reason.INVALID, message=str(error))
    return Patch(operations=operations) if operations else None


def _operations(
    before: JsonObject, after: JsonObject, record: Mapping[str, Mapping[str, Stated]], policy: Policy
) -> Iterator[Operation]:
    for section in pods.SECTIONS:
        earlier = {text(obj(each).get("name")): obj(each) for each in items(before.get(section))}
        for index, each in enumerate(items(after.get(section))):
            container = obj(each)
            name = text(container.get("name"))
            resources = obj(container.get("resources"))
            path = f"spec.{section}[{index}].resources"
            found = find(resources, path=path, handled=policy.resources.all())
            _check(found.stated, found.conflicts, record.get(name, {}), policy)
            for kind, resource in found.places:
                yield patch.remove("spec", section, index, "resources", kind, resource)
            was = obj(earlier.get(name))
            yield from _list_as_it_was(
                resources, obj(was.get("resources")), "claims", ("spec", section, index, "resources")
            )
            yield from _list_as_it_was(container, was, "env", ("spec", section, index))
    yield from _list_as_it_was(after, before, "resourceClaims", ("spec",))
    node = after.get("nodeName")
    if (
        node
        and not before.get("nodeName")
        and obj(before.get("nodeSelector")).get(placement.HOSTNAME) == node
    ):
        yield patch.remove("spec", "nodeName")


def _check(
    stated: Mapping[str, Stated], conflicts: tuple[str, ...], converted: Mapping[str, Stated], policy: Policy
) -> None:
    for name, value in stated.items():
        known = converted.get(name)
        if known is None or not _is_same(value.value, known.value) or name in conflicts:
            was = "was created without it" if known is None else f"was created with {known.value}"
            fix = f"the pod {was}, and what it asks for cannot change; delete it and create it anew"
            if name == policy.resources.memory:
                fix += f" (the limit of a running pod: annotation {names.ANNOTATION_MEMORY_LIMIT})"
            raise InvalidInput(field=value.field, value=value.value, fix=fix)


def _is_same(left: str, right: str) -> bool:
    try:
        return quantity.parse(left, field="") == quantity.parse(right, field="")
    except InvalidInput:
        return left == right


def _list_as_it_was(
    holder: JsonObject, was: JsonObject, key: str, base: tuple[str | int, ...]
) -> Iterator[Operation]:
    """The earlier list, if the new one lacks nothing but what we had put in."""
    old, new = items(was.get(key)), items(holder.get(key))
    if old != new and [each for each in old if not _is_ours(each)] == new:
        yield patch.add(old, *base, key)


def _is_ours(entry: object) -> bool:
    name = text(obj(entry).get("name"))
    return name.startswith(names.POD_CLAIM_NAME) or name == environment.VISIBLE_DEVICES
