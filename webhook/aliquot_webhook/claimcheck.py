# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a claim that somebody wrote by hand, and with a pod that uses one.

The rules are those for pods: what the scheduler would never find, what the agent would refuse at Prepare, and
what could lift a limit, is refused at once, with the fix.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from aliquot_api import modes, names, quantity
from aliquot_api.config import ShareConfig, Sharing, decode, merge
from aliquot_api.errors import InvalidInput
from aliquot_api.reach import beyond_its_share
from aliquot_api.wire import JsonObject, dig, items, obj, text
from aliquot_webhook.candidates import check_offered
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import Policy

CAPACITIES: Final = (names.CAPACITY_MEMORY, names.CAPACITY_CORES, names.CAPACITY_SHARES)
_SHOWN: Final = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """One way to meet a request: the request itself, or one of its alternatives."""

    request: str
    """Name of the request, not of the alternative."""
    field: str
    ask: JsonObject

    @property
    def is_whole(self) -> bool:
        """It states no memory, so it takes all of a card and nobody fits beside it."""
        return names.CAPACITY_MEMORY not in obj(dig(self.ask, "capacity", "requests"))


def check_claim(
    spec: object, *, field: str, classes: Collection[str], policy: Policy, inventory: Inventory
) -> None:
    """Raise InvalidInput for the first thing wrong in a ResourceClaimSpec at `field`."""
    devices = obj(dig(spec, "devices"))
    configs = _configs(devices, field=f"{field}.devices")
    asked = list(_asked(devices, field=f"{field}.devices", classes=classes))
    for each in asked:
        _check_capacities(each)
        _check_count(each, policy)
        _check_mode(each, configs.get(each.request, ShareConfig()), inventory)
    _check_sizes(asked, inventory)
    requests = {each.request for each in asked}
    if len(requests) > policy.max_requests:
        raise InvalidInput(
            field=f"{field}.devices.requests",
            value=f"{len(requests)} requests for GPUs",
            fix=f"want at most {policy.max_requests} in one claim: the scheduler's search grows"
            " exponentially with them",
        )


def check_pod(
    spec: JsonObject,
    claims: dict[str, object],
    *,
    classes: Collection[str],
    policy: Policy,
) -> None:
    """Raise InvalidInput for the first thing wrong in a pod spec that uses `claims` (specs by the pod's own
    names for them)."""
    asked = {
        name: list(_asked(obj(dig(claim, "devices")), field="", classes=classes))
        for name, claim in claims.items()
    }
    ours = {name: found for name, found in asked.items() if found}
    if not ours:
        return
    everything_is_whole = all(each.is_whole for found in ours.values() for each in found)
    if not (everything_is_whole and policy.allow_privileged_whole_gpu):
        problem = next(beyond_its_share(spec, policy.guarded_dirs), None)
        if problem is not None:
            raise problem
    for kind in ("containers", "initContainers"):
        for index, container in enumerate(items(spec.get(kind))):
            for position, entry in enumerate(items(dig(container, "resources", "claims"))):
                name = text(obj(entry).get("name"))
                if name in ours and not obj(entry).get("request"):
                    path = f"spec.{kind}[{index}].resources.claims[{position}]"
                    _check_distinct(ours[name], claims[name], path=path, name=name)


def whole_requests(spec: object, *, classes: Collection[str]) -> set[str]:
    """Names of the requests that take whole cards in each of their alternatives."""
    asked = list(_asked(obj(dig(spec, "devices")), field="", classes=classes))
    return {each.request for each in asked} - {each.request for each in asked if not each.is_whole}


def stated_memory(spec: object, *, classes: Collection[str]) -> dict[str, int]:
    """Bytes that the requests of a claim ask for, by request; the most of its alternatives. Those that may
    take a whole card are left out."""
    found: dict[str, int] = {}
    whole = set()
    for each in _asked(obj(dig(spec, "devices")), field="", classes=classes):
        if each.is_whole:
            whole.add(each.request)
            continue
        stated = text(dig(each.ask, "capacity", "requests", names.CAPACITY_MEMORY))
        number = quantity.parse(stated, field=names.CAPACITY_MEMORY)
        found[each.request] = max(number, found.get(each.request, 0))
    return {request: number for request, number in found.items() if request not in whole}


def _check_distinct(asked: list[Asked], claim: object, *, path: str, name: str) -> None:
    """A container that takes all of a claim must not get one card twice: it could have one limit only."""
    sharing: list[str] = []
    for each in asked:
        if not each.is_whole and each.request not in sharing:
            sharing.append(each.request)
    if len(sharing) < 2:
        return
    for constraint in items(dig(claim, "devices", "constraints")):
        covered = [text(request).partition("/")[0] for request in items(obj(constraint).get("requests"))]
        if obj(constraint).get("distinctAttribute") and (
            not covered or all(each in covered for each in sharing)
        ):
            return
    raise InvalidInput(
        field=path,
        value=name[:_SHOWN],
        fix=f"requests {', '.join(sharing[:4])} of this claim may get one GPU, and the container would have"
        f" it twice; add a constraint with distinctAttribute {names.DRIVER}/uuid to the claim, or name one"
        " request here",
    )


def _asked(devices: JsonObject, *, field: str, classes: Collection[str]) -> Iterator[Asked]:
    for index, request in enumerate(items(devices.get("requests"))):
        name, path = text(obj(request).get("name")), f"{field}.requests[{index}]"
        exactly = obj(obj(request).get("exactly"))
        if exactly.get("deviceClassName") in classes:
            yield Asked(request=name, field=f"{path}.exactly", ask=exactly)
        for position, each in enumerate(items(obj(request).get("firstAvailable"))):
            if dig(each, "deviceClassName") in classes:
                yield Asked(request=name, field=f"{path}.firstAvailable[{position}]", ask=obj(each))


def _check_capacities(asked: Asked) -> None:
    for key, value in obj(dig(asked.ask, "capacity", "requests")).items():
        field = f"{asked.field}.capacity.requests[{key[:_SHOWN]}]"
        shown = text(value)[:_SHOWN]
        if key not in CAPACITIES:
            unqualified = key.rpartition("/")[2]
            meant = f"want {unqualified!r}: " if unqualified in CAPACITIES else ""
            raise InvalidInput(
                field=field,
                value=shown,
                fix=f"{meant}capacities of {names.DRIVER} are {', '.join(CAPACITIES)}, without a domain"
                " (the scheduler compares their names as text, and would find no GPU)",
            )
        number = quantity.parse(text(value), field=field)
        if key == names.CAPACITY_MEMORY and number < quantity.MIB:
            meant = f"; did you mean {number}Mi?" if number > 0 else ""
            raise InvalidInput(field=field, value=shown, fix=f"want at least 1Mi{meant}")
        if key == names.CAPACITY_CORES and not 0 <= number <= 100:
            raise InvalidInput(field=field, value=shown, fix="want a percentage from 0 to 100")
        if key == names.CAPACITY_SHARES and number < 1:
            raise InvalidInput(field=field, value=shown, fix="want at least 1")


def _check_count(asked: Asked, policy: Policy) -> None:
    count = asked.ask.get("count", 1)
    if isinstance(count, int) and count > 1 and not policy.count_is_distinct and not asked.is_whole:
        raise InvalidInput(
            field=f"{asked.field}.count",
            value=count,
            fix="before Kubernetes 1.36 this is one GPU several times; write as many requests instead, and a"
            f" constraint with distinctAttribute {names.DRIVER}/uuid",
        )


def _check_sizes(asked: list[Asked], inventory: Inventory) -> None:
    """No GPU is large enough: neither for the request, nor for any of its alternatives."""
    largest = inventory.largest
    if largest is None:
        return
    fits: set[str] = set()
    too_large: dict[str, InvalidInput] = {}
    for each in asked:
        stated = text(dig(each.ask, "capacity", "requests", names.CAPACITY_MEMORY))
        field = f"{each.field}.capacity.requests[{names.CAPACITY_MEMORY}]"
        if not stated or quantity.parse(stated, field=field) <= largest.memory_bytes:
            fits.add(each.request)
            continue
        too_large[each.request] = InvalidInput(
            field=field,
            value=stated,
            fix=f"no GPU of this cluster is that large; the largest, {largest.product or 'unnamed'}, has"
            f" {largest.memory_bytes // quantity.MIB}Mi",
        )
    for request, error in too_large.items():
        if request not in fits:
            raise error


def _check_mode(asked: Asked, config: ShareConfig, inventory: Inventory) -> None:
    """A way of sharing that no GPU has, or that serves no container with several GPUs."""
    mode, field = modes.of_config(config), f"{asked.field} (its config, sharing)"
    if mode.sharing in (Sharing.TIMESLICE, Sharing.MPS):
        check_offered(mode, inventory, field=field)
    if mode == modes.MPS and asked.ask.get("count", 1) != 1:
        fix = "MPS serves a container on one GPU; ask for one per request"
        raise InvalidInput(field=field, value=str(mode), fix=fix)


def _configs(devices: JsonObject, *, field: str) -> dict[str, ShareConfig]:
    """What a claim's configurations say together, by request."""
    by_request: dict[str, list[ShareConfig]] = {}
    everybody = [text(obj(request).get("name")) for request in items(devices.get("requests"))]
    for index, config in enumerate(items(devices.get("config"))):
        if dig(config, "opaque", "driver") != names.DRIVER:
            continue
        path = f"{field}.config[{index}].opaque.parameters"
        decoded = decode(dig(config, "opaque", "parameters"), field=path)
        for request in [text(each) for each in items(obj(config).get("requests"))] or everybody:
            by_request.setdefault(request, []).append(decoded)
    return {
        request: merge(class_configs=[], claim_configs=configs, field=f"{field}.config (request {request})")
        for request, configs in by_request.items()
    }
