# SPDX-License-Identifier: Apache-2.0
"""Claim templates: the spec that a pod's GPU requests need, its content-addressed name, and comparison.

The name is a hash of the canonical spec, so equal pods share one template per namespace and any replica
computes the same name without asking anybody.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NotRequired, TypedDict

from aliquot_api import names, quantity
from aliquot_api.config import ShareConfig, Sharing
from aliquot_api.errors import InvalidInput
from aliquot_webhook.inventory import Inventory
from aliquot_webhook.policy import DEFAULT_SHARES
from aliquot_webhook.requests import GpuRequest
from aliquot_webhook.wire import items, obj

NAME_PREFIX: Final = "aliquot-"
_HASH_DIGITS: Final = 16


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
    selectors: NotRequired[list[DeviceSelector]]


class DeviceRequest(TypedDict):
    """One container's entry in a claim."""

    name: str
    exactly: ExactRequest


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
    config: NotRequired[list[ClaimConfig]]


class ClaimSpec(TypedDict):
    """Spec of a ResourceClaim."""

    devices: DeviceClaim


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """A ResourceClaimTemplate that must exist before a pod that names it is admitted."""

    name: str
    spec: ClaimSpec


def claim_template(requests: Sequence[GpuRequest], inventory: Inventory) -> ClaimTemplate:
    """The template for a pod that makes these requests, whatever their order."""
    # Largest first: the allocator backtracks, and finds out early that the hardest request cannot fit.
    ordered = sorted(
        requests,
        key=lambda request: (
            request.memory_bytes is not None,
            -(request.memory_bytes or 0),
            -request.count,
            request.container,
        ),
    )
    devices: DeviceClaim = {"requests": [_device_request(request, inventory) for request in ordered]}
    whole = [request.container for request in ordered if request.is_whole]
    if whole:
        parameters = ShareConfig(sharing=Sharing.EXCLUSIVE).encode()
        devices["config"] = [
            {"requests": whole, "opaque": {"driver": names.DRIVER, "parameters": parameters}}
        ]
    spec: ClaimSpec = {"devices": devices}
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_DIGITS]
    return ClaimTemplate(name=f"{NAME_PREFIX}{_summary(ordered)}-{digest}", spec=spec)


def _device_request(request: GpuRequest, inventory: Inventory) -> DeviceRequest:
    # Cores are always written: what an omitted one means is the node's business, not the pod's.
    capacity = {names.CAPACITY_CORES: str(request.cores_percent)}
    exactly: ExactRequest = {
        "deviceClassName": names.DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": request.count,
        "capacity": {"requests": capacity},
    }
    if request.memory_bytes is not None:  # omitted: the device's default, which is all of it
        capacity[names.CAPACITY_MEMORY] = quantity.format_mebibytes(request.memory_bytes)
    if request.is_exclusive_share:
        # Cores alone do not keep out sharers that reserve none, so take every share of the card. The
        # selector keeps that true on a card that has more shares than the usual one.
        shares = inventory.usual_shares(request.memory_bytes or 0) or DEFAULT_SHARES
        capacity[names.CAPACITY_SHARES] = str(shares)
        expression = (
            f'device.capacity["{names.DRIVER}"].{names.CAPACITY_SHARES}.compareTo(quantity("{shares}")) == 0'
        )
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": request.container, "exactly": exactly}


def _summary(ordered: Sequence[GpuRequest]) -> str:
    first = ordered[0]
    size = "gpu" if first.memory_bytes is None else f"{first.memory_bytes // quantity.MIB}mi"
    more = f"-and-{len(ordered) - 1}-more" if len(ordered) > 1 else ""
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
