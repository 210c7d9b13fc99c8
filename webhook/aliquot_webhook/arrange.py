# SPDX-License-Identifier: Apache-2.0
"""A pod's GPU requests as claims: who shares a request with whom, in which order, under which constraints.

One claim per pod with one request per container, since no constraint can span claims. The exception is a
container with several GPUs on a server that would give it one GPU several times (1.35): it needs a request
for each, a container can name one request or all of a claim, so it gets a claim of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aliquot_api import modes, names
from aliquot_api.config import ShareConfig
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode
from aliquot_webhook.candidates import Candidates
from aliquot_webhook.claims import ClaimTemplate, Constraint, PlannedRequest, claim_template
from aliquot_webhook.constraints import UUID_ATTRIBUTE, Requests, constraints
from aliquot_webhook.fitting import alternatives
from aliquot_webhook.pods import own_claim_name
from aliquot_webhook.policy import Policy
from aliquot_webhook.requests import GpuRequest, Meant
from aliquot_webhook.search import check_search
from aliquot_webhook.wishes import Wishes, path


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
    _check_mps(planned, wishes.choice.sharing)
    apart = () if policy.count_is_distinct else tuple(each for each in planned if each.request.count > 1)
    together = tuple([each for each in planned if each not in apart])
    requests = Requests(
        counts={each.name: each.request.count for each in planned},
        holder=holder,
        apart={each.name for each in apart},
    )
    limits = list(constraints(wishes, requests, found.everything, warnings))
    claims = [(own_claim_name(each.name), *_one_by_one(each, limits)) for each in apart]
    if together:
        theirs = {each.name for each in together}
        shared = [constraint for constraint in limits if constraint["requests"][0] in theirs]
        claims.insert(0, (names.POD_CLAIM_NAME, together, shared))
    check_search([claim[1:] for claim in claims], found.everything, policy)
    mode = wishes.choice.sharing
    wish = ShareConfig(sharing=mode.sharing, time_slice=mode.time_slice, compute_policy=wishes.compute_policy)
    return Arrangement(
        claims=tuple(
            PodClaim(
                name=name,
                template=claim_template(members, own_limits, wish, is_judged=not policy.is_budgeted),
            )
            for name, members, own_limits in claims
        ),
        entries={
            container: {"name": own_claim_name(request)}
            if request in requests.apart
            else {"name": names.POD_CLAIM_NAME, "request": request}
            for container, request in holder.items()
        },
        warnings=tuple(warnings),
    )


def _check_mps(planned: Sequence[PlannedRequest], sharing: Mode) -> None:
    """A program talks to one MPS daemon, and each GPU has its own."""
    for each in planned if sharing == modes.MPS else ():
        if each.request.count > 1 and not each.request.is_whole:
            fix = "MPS serves a container on one GPU; ask for one, or for whole ones, or choose another mode"
            raise InvalidInput(
                field=path(names.ANNOTATION_SHARING),
                value=f"{sharing} on {each.request.count} GPUs for container {each.request.container}",
                fix=fix,
            )


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
                f"init container {asker.request.container} asks for more than another container has: its"
                " share is held beside theirs until the pod ends"
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
    for each in planned:
        if each.request.count > policy.max_requests and not policy.count_is_distinct:
            raise InvalidInput(
                field=f"container {each.request.container}",
                value=f"{each.request.count} GPUs",
                fix=f"want at most {policy.max_requests} in one container before Kubernetes 1.36, where each"
                " needs a request of its own",
            )
    devices = sum(each.request.count for each in planned)
    if devices > policy.max_devices:
        raise InvalidInput(
            field="spec.containers",
            value=f"{devices} GPUs",
            fix=f"want at most {policy.max_devices} in one pod, over all its containers",
        )


def _one_by_one(
    planned: PlannedRequest, of_pod: Sequence[Constraint]
) -> tuple[tuple[PlannedRequest, ...], list[Constraint]]:
    """A request for each GPU of a container, all different, and the constraints of that container."""
    count = planned.request.count
    each = replace(planned.request, count=1)
    requests = tuple(replace(planned, name=f"gpu-{index}", request=each) for index in range(count))
    names_of_all = [request.name for request in requests]
    limits: list[Constraint] = [{"requests": names_of_all, "distinctAttribute": UUID_ATTRIBUTE}]
    limits += [
        {"requests": names_of_all, "matchAttribute": constraint["matchAttribute"]}
        for constraint in of_pod
        if constraint["requests"] == [planned.name] and "matchAttribute" in constraint
    ]
    return requests, limits
