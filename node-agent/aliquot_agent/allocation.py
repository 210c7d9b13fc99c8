# SPDX-License-Identifier: Apache-2.0
"""What a ResourceClaim's allocation gives us: our results, with amounts and configuration. Pure.

This is where a share comes from; how it is held is decided in `claims`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aliquot_agent.errors import NotOurs, Refused
from aliquot_api import config, modes, quantity
from aliquot_api.config import ComputePolicy, OverQuota, Priority, ShareConfig
from aliquot_api.errors import InvalidInput
from aliquot_api.modes import Mode
from aliquot_api.names import CAPACITY_CORES, CAPACITY_MEMORY, CAPACITY_SHARES, DRIVER

_SHARE_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
_SOURCES: Final = ("FromClass", "FromClaim")
_CONFIG_FIELD: Final = "status.allocation.devices.config"
_NOTHING: Final = ShareConfig()


@dataclass(frozen=True, slots=True)
class Result:
    """One allocation result of our driver."""

    request: str
    """Base name of the request: `gpu` of `gpu/large`."""
    pool: str
    device: str
    share: str
    memory_bytes: int
    cores_percent: int
    shares: int
    sharing: Mode
    class_over_quota: OverQuota | None
    """What the DeviceClass says."""
    claim_over_quota: OverQuota | None
    """What the claim says."""
    class_compute_policy: ComputePolicy | None
    claim_compute_policy: ComputePolicy | None
    priority: Priority | None


def own_results(claim: Mapping[str, Any], *, uid: str, node: str) -> tuple[Result, ...]:
    """Our results of `claim`, which kubelet called `uid`; raises Refused."""
    found = claim["metadata"].get("uid")
    if found != uid:
        raise NotOurs(f"the claim of this name has UID {found}, kubelet asked for {uid}: it was made anew")
    allocation = (claim.get("status") or {}).get("allocation")
    if allocation is None:
        raise NotOurs("the claim is not allocated")
    devices = allocation.get("devices") or {}
    results = [result for result in devices.get("results") or [] if result.get("driver") == DRIVER]
    configs = devices.get("config") or []
    if not results:
        raise NotOurs(f"the claim's allocation has no device of driver {DRIVER}")
    parsed = tuple(_result(result, node=node, configs=configs) for result in results)
    keys = [(result.request, result.device) for result in parsed]
    for request, device in keys:
        if keys.count((request, device)) > 1:
            raise Refused(
                f"request {request} was given device {device} twice: one container cannot hold two shares "
                "of a GPU; ask for several with a distinctAttribute constraint, or use Kubernetes >= 1.36"
            )
    return parsed


def pod_claim_name(claim: Mapping[str, Any]) -> str:
    """The name by which a pod's spec knows a claim that was made from a template; else empty."""
    name = (claim["metadata"].get("annotations") or {}).get(_POD_CLAIM, "")
    return str(name) if _LABEL.fullmatch(str(name)) else ""


def _result(result: Mapping[str, Any], *, node: str, configs: Sequence[Mapping[str, Any]]) -> Result:
    device, pool, request = str(result["device"]), str(result["pool"]), str(result["request"])
    if pool != node:
        raise NotOurs(f"device {device} is of pool {pool}, this node's pool is {node}")
    if result.get("adminAccess"):
        raise Refused(f"request {request} has adminAccess, which shares do not have")
    consumed = result.get("consumedCapacity") or {}
    share = result.get("shareID")
    if not share or CAPACITY_MEMORY not in consumed:
        raise Refused(
            f"the allocation of device {device} has no shareID or no consumedCapacity[{CAPACITY_MEMORY}]: "
            "it was made by a scheduler without consumable capacity, and does not say how much may be used"
        )
    if not _LABEL.fullmatch(request.partition("/")[0]):
        raise Refused(f"request {request!r} has no name that Kubernetes gives")
    if not _SHARE_ID.fullmatch(str(share)):
        raise Refused(f"shareID {share!r} is no UUID")
    wishes = _config(configs, request=request)
    by_class, by_claim = (_config(configs, request=request, sources=[source]) for source in _SOURCES)
    return Result(
        request=request.partition("/")[0],
        pool=pool,
        device=device,
        share=str(share),
        memory_bytes=_amount(consumed, CAPACITY_MEMORY, default="0"),
        cores_percent=_amount(consumed, CAPACITY_CORES, default="0"),
        shares=_amount(consumed, CAPACITY_SHARES, default="1"),
        sharing=modes.of_config(wishes),
        class_over_quota=by_class.over_quota,
        claim_over_quota=by_claim.over_quota,
        class_compute_policy=by_class.compute_policy,
        claim_compute_policy=by_claim.compute_policy,
        priority=wishes.priority,
    )


def _amount(consumed: Mapping[str, str], name: str, *, default: str) -> int:
    try:
        return quantity.parse(str(consumed.get(name, default)), field=f"consumedCapacity[{name}]")
    except InvalidInput as error:
        raise Refused(str(error)) from error


def _config(
    configs: Sequence[Mapping[str, Any]], *, request: str, sources: Sequence[str] = _SOURCES
) -> ShareConfig:
    """The configuration that counts for `request`, or the part of it that `sources` state."""
    if not configs:
        return _NOTHING
    stated: dict[str, list[ShareConfig]] = {source: [] for source in _SOURCES}
    try:
        for index, entry in enumerate(configs):
            opaque, source = entry.get("opaque") or {}, entry.get("source")
            names = entry.get("requests") or []
            applies = not names or request in names or request.partition("/")[0] in names
            if source in sources and opaque.get("driver") == DRIVER and applies:
                field = f"{_CONFIG_FIELD}[{index}].opaque.parameters"
                stated[str(source)].append(config.decode(opaque.get("parameters"), field=field))
        by_class, by_claim = (stated[source] for source in _SOURCES)
        return config.merge(class_configs=by_class, claim_configs=by_claim, field=_CONFIG_FIELD)
    except InvalidInput as error:
        raise Refused(str(error)) from error
