# SPDX-License-Identifier: Apache-2.0
"""What is refused whatever the GPUs are, and what is accepted with a word of warning."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_api.reach import beyond_its_share
from aliquot_api.wire import JsonObject, items, obj, text
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.pods import SECTIONS, Container, is_default
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import GpuRequest

DEFAULT_SCHEDULER: Final = "default-scheduler"
_MOST_CONTAINERS: Final = 64
DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_reach(spec: JsonObject, requests: Sequence[GpuRequest], policy: Policy) -> None:
    """A pod with a limit must not be able to lift it."""
    if policy.allow_privileged_whole_gpu and all(request.is_whole for request in requests):
        return
    problem = next(beyond_its_share(spec, policy.guarded_dirs), None)
    if problem is not None:
        raise problem


def check_number(containers: Sequence[Container]) -> None:
    """Before anything is compared with anything: a pod may have ten thousand containers, and admission of
    all others waits while we think about them."""
    if len(containers) > _MOST_CONTAINERS:
        raise InvalidInput(
            field="spec",
            value=f"{len(containers)} containers with GPUs",
            fix=f"want at most {_MOST_CONTAINERS}, init containers included",
        )


def check_names(spec: JsonObject, containers: Sequence[Container]) -> None:
    """Names become names of requests, and have to tell containers apart."""
    everyone = [text(obj(each).get("name")) for section in SECTIONS for each in items(spec.get(section))]
    are_unique = len(set(everyone)) == len(everyone)
    for container in containers:
        if not DNS_LABEL.fullmatch(container.name):
            fix = "want a DNS label of at most 63 characters"
        elif not are_unique and everyone.count(container.name) > 1:
            fix = "container names must be unique in a pod"
        else:
            continue
        raise InvalidInput(
            field=f"spec.{container.section}[{container.index}].name", value=container.name[:64], fix=fix
        )


def container_warnings(container: Container, policy: Policy, pod: JsonObject) -> Iterator[str]:
    """What of a container's resources does not count."""
    priority = policy.resources.priority
    for name in container.found.conflicts:
        yield f"container {container.name}: limit and request of {name} differ; the limit counts"
    if container.stated is container.found.stated:
        if container.stated.keys() == {priority}:
            yield f"container {container.name}: {priority} means nothing without a GPU and is dropped"
        return
    for name, found in container.found.stated.items():
        counted = container.stated.get(name)
        is_ignored = counted is None or counted.value != found.value
        # LimitRanger runs again after us and puts its defaults back: nobody asked for that.
        if is_ignored and not is_default(pod, container.name, name):
            yield (
                f"{found.field}: {found.value} is ignored: the pod was converted before, see annotation"
                f" {names.REQUEST_ANNOTATION}; to ask anew, remove that annotation and the claim"
                f" {names.POD_CLAIM_NAME!r}"
            )


def pod_warnings(spec: JsonObject, inventory: Inventory) -> Iterator[str]:
    """What the pod's author should know about where and when it will run."""
    if inventory.largest is None:
        yield "Aliquot knows no GPU in this cluster yet: the pod waits until a node publishes one"
    scheduler = text(spec.get("schedulerName"))
    if scheduler not in ("", DEFAULT_SCHEDULER):
        yield (
            f"scheduler {scheduler[:64]}: it has to support consumable capacity of ResourceClaims"
            " (KEP-5075), else the pod stays pending"
        )
