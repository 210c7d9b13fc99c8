# SPDX-License-Identifier: Apache-2.0
"""Claim templates: the spec that a pod's GPU requests need, its content-addressed name, and comparison.

The name is a hash of the canonical spec, so equal pods share one template per namespace and any replica
computes the same name without asking anybody.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as _quoted
from typing import Final, Literal, NotRequired, TypedDict

from aliquot_api import names, quantity
from aliquot_api.config import Priority, ShareConfig, Sharing
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import items, obj
from aliquot_webhook.requests import GpuRequest
from aliquot_webhook.values import value

_NO_WISH: Final = ShareConfig()
NAME_PREFIX: Final = "aliquot-"
_HASH_DIGITS: Final = 16
_JUDGED: Final = "judged"
"""Hashed with the specs of such templates, which must not have the names of the others."""
_CANONICAL: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False)
"""Every key is written below, in one order, so nothing has to be sorted; nor does anything hold itself."""


class CapacityRequests(TypedDict):
    """`capacity` of a device request: quantities by unqualified capacity name."""

    requests: dict[str, str]


class CelSelector(TypedDict):
    """`cel` of a device selector."""

    expression: str


class DeviceSelector(TypedDict):
    """One of a device request's selectors."""

    cel: CelSelector


class ExactRequest(TypedDict):
    """`exactly` of a device request. Every field with a default is written out."""

    deviceClassName: str
    allocationMode: Literal["ExactCount"]
    count: int
    capacity: CapacityRequests
    selectors: list[DeviceSelector]


class SubRequest(ExactRequest):
    """One of the alternatives of a device request."""

    name: str


class DeviceRequest(TypedDict):
    """One container's entry in a claim; it has one of the two."""

    name: str
    exactly: NotRequired[ExactRequest]
    firstAvailable: NotRequired[list[SubRequest]]


class Constraint(TypedDict):
    """Something that the devices of these requests share, or do not; it has one of the two."""

    requests: list[str]
    matchAttribute: NotRequired[str]
    distinctAttribute: NotRequired[str]


class OpaqueConfig(TypedDict):
    """Parameters that only our agent reads."""

    driver: str
    parameters: dict[str, str]


class ClaimConfig(TypedDict):
    """Opaque configuration for some requests of a claim."""

    requests: list[str]
    opaque: OpaqueConfig


class DeviceClaim(TypedDict):
    """`devices` of a claim spec."""

    requests: list[DeviceRequest]
    constraints: NotRequired[list[Constraint]]
    config: NotRequired[list[ClaimConfig]]


class ClaimSpec(TypedDict):
    """Spec of a ResourceClaim."""

    devices: DeviceClaim


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """A ResourceClaimTemplate that must exist before a pod that names it is admitted."""

    name: str
    spec: ClaimSpec
    is_judged: bool = False
    """Its claims are not judged again when they are made: their pods have been."""


@value
class Alternative:
    """One way to serve a request."""

    selector: str
    memory_bytes: int | None
    """Per GPU; None leaves it to the device's default, which is all of it."""
    shares: int | None = None
    """None is one."""


@value
class PlannedRequest:
    """A request as it stands in a claim: its name, and its alternatives, most welcome first."""

    name: str
    request: GpuRequest
    alternatives: tuple[Alternative, ...]


def claim_template(
    requests: Sequence[PlannedRequest],
    constraints: Sequence[Constraint] = (),
    wish: ShareConfig = _NO_WISH,
    *,
    is_judged: bool = False,
) -> ClaimTemplate:
    """The template of a claim for these requests, in this order; `wish` is the pod's for all of them."""
    devices: DeviceClaim = {"requests": [_device_request(planned) for planned in requests]}
    if constraints:
        devices["constraints"] = list(constraints)
    config = _config(requests, wish)
    if config:
        devices["config"] = config
    spec: ClaimSpec = {"devices": devices}
    content = _canonical(devices) + _JUDGED * is_judged
    digest = hashlib.sha256(content.encode()).hexdigest()[:_HASH_DIGITS]
    name = f"{NAME_PREFIX}{_summary(requests)}-{digest}"
    return ClaimTemplate(name=name, spec=spec, is_judged=is_judged)


def _canonical(devices: DeviceClaim) -> str:
    """The spec with these devices as JSON. What most of it is made of is written out here, in a third of the
    encoder's time, which would be a tenth of the whole of `rewrite`."""
    requests = ",".join([_canonical_request(request) for request in devices["requests"]])
    rest = {key: value for key, value in devices.items() if key != "requests"}
    more = f",{_CANONICAL.encode(rest)[1:-1]}" if rest else ""
    return f'{{"devices":{{"requests":[{requests}]{more}}}}}'


def _canonical_request(request: DeviceRequest) -> str:
    exact = request.get("exactly")
    if exact is None or len(exact["selectors"]) != 1:
        return _CANONICAL.encode(request)
    capacity = ",".join([f'"{name}":"{value}"' for name, value in exact["capacity"]["requests"].items()])
    return (
        f'{{"name":{_quoted(request["name"])},"exactly":{{"deviceClassName":"{exact["deviceClassName"]}",'
        f'"allocationMode":"{exact["allocationMode"]}","count":{exact["count"]},'
        f'"capacity":{{"requests":{{{capacity}}}}},'
        f'"selectors":[{{"cel":{{"expression":{_quoted(exact["selectors"][0]["cel"]["expression"])}}}}}]}}}}'
    )


def _config(requests: Sequence[PlannedRequest], wish: ShareConfig) -> list[ClaimConfig]:
    """What the agent has to do beyond holding limits."""
    by_kind: dict[tuple[bool, Priority | None], list[str]] = {}
    for planned in requests:
        kind = planned.request.is_whole, planned.request.priority
        by_kind.setdefault(kind, []).append(planned.name)
    by_config: dict[ShareConfig, list[str]] = {}
    for (is_whole, priority), names_of_kind in by_kind.items():
        if is_whole:
            config = ShareConfig(sharing=Sharing.EXCLUSIVE)
        else:
            sharing = None if wish.sharing is Sharing.SHIM else wish.sharing  # the agent's default
            config = replace(wish, sharing=sharing, priority=priority)
        if config != _NO_WISH:
            by_config.setdefault(config, []).extend(names_of_kind)
    return [
        {
            "requests": names_of_config,
            "opaque": {"driver": names.DRIVER, "parameters": config.encode()},
        }
        for config, names_of_config in by_config.items()
    ]


def _device_request(planned: PlannedRequest) -> DeviceRequest:
    if len(planned.alternatives) == 1:
        return {"name": planned.name, "exactly": _exact(planned.request, planned.alternatives[0])}
    return {
        "name": planned.name,
        "firstAvailable": [
            {"name": f"choice-{index}", **_exact(planned.request, alternative)}
            for index, alternative in enumerate(planned.alternatives)
        ],
    }


def _exact(request: GpuRequest, alternative: Alternative) -> ExactRequest:
    # Cores are always written: what an omitted one means is the node's business, not the pod's.
    capacity = {names.CAPACITY_CORES: str(request.cores_percent)}
    if alternative.memory_bytes is not None:
        capacity[names.CAPACITY_MEMORY] = quantity.format_mebibytes(alternative.memory_bytes)
    if alternative.shares is not None:
        capacity[names.CAPACITY_SHARES] = str(alternative.shares)
    return {
        "deviceClassName": names.DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": request.count,
        "capacity": {"requests": capacity},
        "selectors": _selectors(alternative.selector),
    }


@functools.lru_cache(maxsize=256)
def _selectors(expression: str) -> list[DeviceSelector]:
    """The requests of a cluster's pods share few."""
    return [{"cel": {"expression": expression}}]


def _summary(requests: Sequence[PlannedRequest]) -> str:
    first = requests[0].request
    if first.memory_percent is not None:
        size = f"{first.memory_percent}percent"
    else:
        size = "gpu" if first.memory_bytes is None else f"{first.memory_bytes // quantity.MIB}mi"
    more = f"-and-{len(requests) - 1}-more" if len(requests) > 1 else ""
    return f"{first.count}x{size}{more}"


def covers(live: object, wanted: object) -> bool:
    """Whether `live`, as a server gives it back, holds all of `wanted`.

    A server may add defaults and rewrites quantities (8192Mi becomes 8Gi); it may not lose or change a
    field. It loses capacity requests without an error where DRAConsumableCapacity is off.
    """
    if isinstance(wanted, dict):
        given = obj(live)
        return all(key in given and covers(given[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        elements = items(live)
        return len(elements) == len(wanted) and all(map(covers, elements, wanted))
    return live == wanted or _same_quantity(live, wanted)


def _same_quantity(left: object, right: object) -> bool:
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    try:
        return quantity.parse(left, field="") == quantity.parse(right, field="")
    except InvalidInput:
        return False
