# SPDX-License-Identifier: Apache-2.0
"""A pod's GPU requests as claims: who shares a request with whom, in which order, under which constraints.

One claim per pod with one request per container, since no constraint can span claims. The exception is a
container with several GPUs on a server that would give it one GPU several times (1.35): it needs a request
for each, a container can name one request or all of a claim, so it gets a claim of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_webhook import wishes as annotations
from aliquot_webhook.candidates import Candidates
from aliquot_webhook.claims import ClaimTemplate, Constraint, PlannedRequest, claim_template
from aliquot_webhook.fitting import alternatives
from aliquot_webhook.inventory import NUMA_NODE, PCIE_ROOT
from aliquot_webhook.pods import own_claim_name
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import GpuRequest, Meant
from aliquot_webhook.search import check_search
from aliquot_webhook.wishes import Wishes

UUID_ATTRIBUTE: Final = f"{names.DRIVER}/uuid"


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of `spec.resourceClaims`."""

    name: str
    template: ClaimTemplate


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What the pod has to hold, and who holds what."""

    claims: tuple[PodClaim, ...]
    entries: Mapping[str, Mapping[str, str]]
    """The entry of `resources.claims`, by container."""
    warnings: tuple[str, ...] = ()


def arrange(askers: Sequence[Meant], wishes: Wishes, found: Candidates, policy: Policy) -> Arrangement:
    """Claims for these containers. Raises InvalidInput for what no claim can say, or no node can serve."""
    holder, warnings = _holders(askers)
    owners = [asker for asker in askers if holder[asker.request.container] == asker.request.container]
    owners.sort(key=lambda asker: _hardness(asker.request))
    planned: list[PlannedRequest] = []
    for asker in owners:
        ways, left_out = alternatives(asker, found, policy)
        if left_out:
            warnings.append(left_out)
        planned.append(PlannedRequest(name=asker.request.container, request=asker.request, alternatives=ways))
    _check_count(planned, policy)
    apart = () if policy.count_is_distinct else tuple(each for each in planned if each.request.count > 1)
    together = tuple(each for each in planned if each not in apart)
    constraints = _constraints(wishes, holder, planned, found, {each.name for each in apart})
    claims = [(own_claim_name(each.name), *_one_by_one(each, constraints)) for each in apart]
    if together:
        theirs = {each.name for each in together}
        shared = [constraint for constraint in constraints if constraint["requests"][0] in theirs]
        claims.insert(0, (names.POD_CLAIM_NAME, together, shared))
    check_search([(requests, limits) for _, requests, limits in claims], found.everything, policy)
    sharing = wishes.choice.sharing
    return Arrangement(
        claims=tuple(
            PodClaim(name=name, template=claim_template(requests, limits, sharing=sharing))
            for name, requests, limits in claims
        ),
        entries={container: _entry(request, apart) for container, request in holder.items()},
        warnings=tuple(warnings),
    )


def _entry(request: str, apart: Sequence[PlannedRequest]) -> Mapping[str, str]:
    if any(each.name == request for each in apart):
        return {"name": own_claim_name(request)}
    return {"name": names.POD_CLAIM_NAME, "request": request}


def _hardness(request: GpuRequest) -> tuple[object, ...]:
    """Largest first: the allocator backtracks, and finds out early that the hardest cannot fit."""
    return (
        not request.takes_all_memory,
        -(request.memory_bytes or 0),
        -(request.memory_percent or 0),
        -request.cores_percent,
        -request.count,
        request.container,
    )


def _holders(askers: Sequence[Meant]) -> tuple[dict[str, str], list[str]]:
    """Whose request each container holds. An init container that is over before the others start uses a
    request that is at least as large, if there is one: a claim is held as long as the pod."""
    holder = {asker.request.container: asker.request.container for asker in askers if not asker.is_sequential}
    if len(holder) == len(askers):
        return holder, []
    lasting = [asker for asker in askers if not asker.is_sequential]
    warnings = []
    for asker in sorted((each for each in askers if each.is_sequential), key=lambda a: _hardness(a.request)):
        enough = [each for each in lasting if _covers(each.request, asker.request)]
        if not enough:
            holder[asker.request.container] = asker.request.container
            lasting.append(asker)
            warnings.append(
                f"init container {asker.request.container} asks for more than another container has: its share"
                " is held beside theirs until the pod ends"
            )
            continue
        smallest = max(enough, key=lambda each: (-each.request.count, _hardness(each.request)))
        holder[asker.request.container] = smallest.request.container
        if replace(smallest.request, container=asker.request.container) != asker.request:
            warnings.append(
                f"init container {asker.request.container} uses the larger share of container"
                f" {smallest.request.container}"
            )
    return holder, warnings


def _covers(large: GpuRequest, small: GpuRequest) -> bool:
    if large.count < small.count or large.cores_percent < small.cores_percent:
        return False
    if small.is_exclusive_share and not (large.is_exclusive_share or large.is_whole):
        return False
    if large.takes_all_memory or small.takes_all_memory:
        return large.takes_all_memory
    if large.memory_bytes is not None and small.memory_bytes is not None:
        return large.memory_bytes >= small.memory_bytes
    return (large.memory_percent or 0) >= (small.memory_percent or 101)


def _check_count(planned: Sequence[PlannedRequest], policy: Policy) -> None:
    if len(planned) > policy.max_requests:
        raise InvalidInput(
            field="spec.containers",
            value=f"{len(planned)} containers with GPUs",
            fix=f"want at most {policy.max_requests} in one pod",
        )
    devices = sum(each.request.count for each in planned)
    if devices > policy.max_devices:
        raise InvalidInput(
            field="spec.containers",
            value=f"{devices} GPUs",
            fix=f"want at most {policy.max_devices} in one pod, over all its containers",
        )


def _one_by_one(
    planned: PlannedRequest, constraints: Sequence[Constraint]
) -> tuple[tuple[PlannedRequest, ...], list[Constraint]]:
    """A request for each GPU of a container, all different, and the constraints of that container."""
    count = planned.request.count
    each = replace(planned.request, count=1)
    requests = tuple(replace(planned, name=f"gpu-{index}", request=each) for index in range(count))
    names_of_all = [request.name for request in requests]
    limits: list[Constraint] = [{"requests": names_of_all, "distinctAttribute": UUID_ATTRIBUTE}]
    limits += [
        {"requests": names_of_all, "matchAttribute": constraint["matchAttribute"]}
        for constraint in constraints
        if constraint["requests"] == [planned.name] and "matchAttribute" in constraint
    ]
    return requests, limits


def _constraints(
    wishes: Wishes,
    holder: Mapping[str, str],
    planned: Sequence[PlannedRequest],
    found: Candidates,
    apart: set[str],
) -> list[Constraint]:
    if wishes is annotations.NONE:
        return []
    count = {each.name: each.request.count for each in planned}
    constraints: list[Constraint] = []

    def chosen(key: str, containers: Sequence[str]) -> list[str]:
        requests = [name for name in count if name in {holder[container] for container in containers}]
        if len(requests) > 1 and apart.intersection(requests):
            raise InvalidInput(
                field=annotations.path(key),
                value=", ".join(requests)[:64],
                fix="on this Kubernetes version a container with several GPUs has a claim of its own, and no"
                " constraint can span claims; ask for one GPU per container (or use Kubernetes 1.36)",
            )
        return requests

    for key, containers, attribute in (
        (names.ANNOTATION_SAME_GPU, wishes.same_gpu, "matchAttribute"),
        (names.ANNOTATION_SPREAD_GPUS, wishes.spread, "distinctAttribute"),
    ):
        requests = chosen(key, containers)
        several = [name for name in requests if count[name] > 1]
        if several and len(requests) > 1:
            # distinctAttribute remembers one device of a request with several (up to 1.37).
            raise InvalidInput(
                field=annotations.path(key),
                value=", ".join(requests)[:64],
                fix=f"this is for containers with one GPU each, and {several[0]} has {count[several[0]]}",
            )
        if len(requests) > 1 and attribute == "matchAttribute":
            constraints.append({"requests": requests, "matchAttribute": UUID_ATTRIBUTE})
        elif len(requests) > 1:
            _check_room(key, requests, len(requests), found.everything.most_gpus, "GPUs on one node")
            constraints.append({"requests": requests, "distinctAttribute": UUID_ATTRIBUTE})
    aligned = [(names.ANNOTATION_NUMA_ALIGN, wishes.numa, NUMA_NODE)]
    aligned.append((names.ANNOTATION_PCIE_ALIGN, wishes.pcie, PCIE_ROOT))
    different = set(wishes.spread) if len(wishes.spread) > 1 else set()
    wanted = [(key, chosen(key, containers), attribute) for key, containers, attribute in aligned]
    if wishes.numa_bind:
        wanted += [(annotations.NUMA_BIND, [name], NUMA_NODE) for name in count]
    for key, requests, attribute in wanted:
        if sum(count[name] for name in requests) > 1:
            least = max(len(different.intersection(requests)), *(count[name] for name in requests))
            most = _most_aligned(key, requests, found, attribute)
            _check_room(key, requests, least, most, f"GPUs with the same {attribute} on one node")
            constraints.append({"requests": requests, "matchAttribute": attribute})
    return constraints


def _most_aligned(key: str, requests: Sequence[str], found: Candidates, attribute: str) -> int:
    """How many GPUs a node has that agree about the attribute."""
    known = found.everything
    is_numa = attribute == NUMA_NODE
    most = known.most_together(lambda gpu: gpu.numa_node if is_numa else gpu.pcie_root)
    if known.gpus and not most:
        value = ", ".join(requests)[:64]
        raise InvalidInput(
            field=annotations.path(key), value=value, fix=f"no GPU of this cluster publishes {attribute}"
        )
    return most


def _check_room(key: str, requests: Sequence[str], wanted: int, most: int, what: str) -> None:
    if most and wanted > most:
        raise InvalidInput(
            field=annotations.path(key),
            value=", ".join(requests)[:64],
            fix=f"that needs {wanted} {what}, and this cluster has at most {most}",
        )
