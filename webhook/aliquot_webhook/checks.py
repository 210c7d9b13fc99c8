# SPDX-License-Identifier: Apache-2.0
"""What is refused, and what is accepted with a word of warning."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from aliquot_api import names, quantity
from aliquot_api.errors import InvalidInput
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.pods import Container
from aliquot_webhook.policy import Policy
from aliquot_webhook.reach import beyond_its_share
from aliquot_webhook.requests import GpuRequest
from aliquot_webhook.wire import JsonObject, items, obj, text

DEFAULT_SCHEDULER: Final = "default-scheduler"
DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_request(request: GpuRequest, container: Container, policy: Policy, inventory: Inventory) -> None:
    resources = policy.resources
    if not DNS_LABEL.fullmatch(container.name):
        raise InvalidInput(
            field=f"spec.containers[{container.index}].name",
            value=container.name[:64],
            fix="want a DNS label of at most 63 characters",
        )
    count = container.stated.get(resources.count)
    if count is not None and request.count > 1 and not policy.count_is_distinct:
        raise InvalidInput(
            field=count.field,
            value=count.value,
            fix="several GPUs for one container are not supported yet on this Kubernetes version"
            " (they work from 1.36); ask for 1",
        )
    largest = inventory.largest
    if largest is None:
        return
    memory = container.stated.get(resources.memory)
    wanted = request.memory_bytes or 0
    if memory is not None and wanted > largest.memory_bytes:
        raise InvalidInput(
            field=memory.field,
            # As a number: the API server has turned the author's 80000 into 80k before we see it.
            value=wanted // quantity.MIB,
            fix=f"no GPU of this cluster is that large; the largest, {largest.product or 'unnamed'},"
            f" has {largest.memory_bytes // quantity.MIB} (MiB)",
        )
    available = inventory.most_on_one_node(wanted)
    if count is not None and request.count > available:
        size = f" of that size ({wanted // quantity.MIB} MiB)" if wanted else ""
        raise InvalidInput(
            field=count.field,
            value=count.value,
            fix=f"{resources.count} counts different physical GPUs on one node, and no node has more"
            f" than {available}{size}",
        )


def check_pod(spec: JsonObject, requests: Sequence[GpuRequest], policy: Policy) -> None:
    if len(requests) > policy.max_requests:
        raise InvalidInput(
            field="spec.containers",
            value=f"{len(requests)} containers with GPUs",
            fix=f"want at most {policy.max_requests} in one pod",
        )
    devices = sum(request.count for request in requests)
    if devices > policy.max_devices:
        raise InvalidInput(
            field="spec.containers",
            value=f"{devices} GPUs",
            fix=f"want at most {policy.max_devices} in one pod, over all its containers",
        )
    if spec.get("nodeName"):
        raise InvalidInput(
            field="spec.nodeName",
            value=text(spec["nodeName"])[:64],
            fix="a pod with GPUs has to pass the scheduler; use nodeSelector kubernetes.io/hostname",
        )
    if all(request.is_whole for request in requests) and policy.allow_privileged_whole_gpu:
        return
    problem = next(beyond_its_share(spec), None)
    if problem is not None:
        raise problem


def check_names(spec: JsonObject, containers: Sequence[Container]) -> None:
    everyone = [
        text(obj(each).get("name"))
        for kind in ("containers", "initContainers")
        for each in items(spec.get(kind))
    ]
    for container in containers:
        if everyone.count(container.name) > 1:
            raise InvalidInput(
                field=f"spec.containers[{container.index}].name",
                value=container.name[:64],
                fix="container names must be unique in a pod",
            )


def container_warnings(container: Container, policy: Policy) -> Iterator[str]:
    priority = policy.resources.priority
    for name in container.found.conflicts:
        yield f"container {container.name}: limit and request of {name} differ; the limit counts"
    for name, found in container.found.stated.items():
        if name == priority:
            yield f"container {container.name}: {priority} has no meaning in Aliquot and is dropped"
        counted = container.stated.get(name)
        if counted is None or counted.value != found.value:
            yield (
                f"{found.field}: {found.value} is ignored: the pod was converted before, see annotation"
                f" {names.REQUEST_ANNOTATION}; to ask anew, remove that annotation and the claim"
                f" {names.POD_CLAIM_NAME!r}"
            )


def pod_warnings(spec: JsonObject, inventory: Inventory) -> Iterator[str]:
    if inventory.largest is None:
        yield "Aliquot knows no GPU in this cluster yet: the pod waits until a node publishes one"
    scheduler = text(spec.get("schedulerName"))
    if scheduler not in ("", DEFAULT_SCHEDULER):
        yield (
            f"scheduler {scheduler[:64]}: it has to support consumable capacity of ResourceClaims"
            " (KEP-5075), else the pod stays pending"
        )
