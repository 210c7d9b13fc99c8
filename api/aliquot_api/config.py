# SPDX-License-Identifier: Apache-2.0
"""`ShareConfig`, the opaque configuration of our devices in DeviceClasses and claims, decoded strictly.

Webhook and agent use this same code, so that what admission accepts, Prepare understands.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aliquot_api.errors import InvalidInput
from aliquot_api.names import DRIVER

API_VERSION: Final = f"{DRIVER}/v1alpha1"
KIND: Final = "ShareConfig"

_Order = TypeVar("_Order", bound=enum.StrEnum)


class Sharing(enum.StrEnum):
    """How a share is kept apart from its neighbours."""

    SHIM = "shim"
    TIMESLICE = "timeslice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"


class TimeSlice(enum.StrEnum):
    """How long a process has a GPU that is shared by time slices while others wait, in nvidia-smi's words."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


class OverQuota(enum.StrEnum):
    """What happens to a process that holds more than its share, from the mildest to the strictest."""

    WARN = "warn"
    KILL = "kill"
    EVICT = "evict"


class ComputePolicy(enum.StrEnum):
    """How a share's cores are held, from the mildest to the strictest."""

    OFF = "off"
    """Not at all."""
    FAIR = "fair"
    """At least the share: what others leave idle is lent, and taken back when they return."""
    STRICT = "strict"
    """Never above the share, and nobody else gets what it leaves idle."""


class Priority(enum.StrEnum):
    """Who comes first when idle time is lent: `nvidia.com/priority` 0 and 1."""

    HIGH = "high"
    LOW = "low"


_FIELDS: Final[Mapping[str, tuple[str, type[enum.StrEnum]]]] = {
    "sharing": ("sharing", Sharing),
    "timeSlice": ("time_slice", TimeSlice),
    "overQuota": ("over_quota", OverQuota),
    "computePolicy": ("compute_policy", ComputePolicy),
    "priority": ("priority", Priority),
}
"""Name in the document -> field of ShareConfig and its values."""
_BOUNDED: Final = ("over_quota", "compute_policy", "priority")
"""The administrator's, in the class: a claim can choose a later one of the values, never an earlier."""
_UNPACED: Final = (Sharing.EXCLUSIVE, Sharing.MPS, Sharing.TIMESLICE)
"""Nothing is paced there: a GPU for one tenant, or SMs for each, or the driver's turns."""


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """Wishes of a claim or class that are not capacities; None is not stated."""

    sharing: Sharing | None = None
    time_slice: TimeSlice | None = None
    """Only beside `sharing` timeslice; not stated: any length."""
    over_quota: OverQuota | None = None
    compute_policy: ComputePolicy | None = None
    priority: Priority | None = None

    def encode(self) -> dict[str, str]:
        """As `opaque.parameters`; `decode` gives an equal object back."""
        header = {"apiVersion": API_VERSION, "kind": KIND}
        stated = {name: getattr(self, target) for name, (target, _) in _FIELDS.items()}
        return header | {name: str(value) for name, value in stated.items() if value is not None}


def decode(parameters: object, *, field: str) -> ShareConfig:
    """`opaque.parameters` at `field` as a ShareConfig.

    Raises InvalidInput for anything but an object of our version and kind with known fields.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidInput(field=field, value=parameters, fix=f"want an object of kind {KIND}")
    for key, want in (("apiVersion", API_VERSION), ("kind", KIND)):
        if parameters.get(key) != want:
            raise InvalidInput(field=f"{field}.{key}", value=parameters.get(key), fix=f"want {want!r}")
    stated: dict[str, Any] = {}
    for key, value in parameters.items():
        if key in ("apiVersion", "kind"):
            continue
        if key not in _FIELDS:
            fix = f"unknown field; want one of {', '.join(_FIELDS)}"
            raise InvalidInput(field=f"{field}.{key}", value=value, fix=fix)
        target, allowed = _FIELDS[key]
        if value not in tuple(allowed):
            fix = f"want one of {', '.join(sorted(allowed))}"
            if value is False and "off" in tuple(allowed):
                fix += '; YAML takes off for false: write "off", in quotes'
            raise InvalidInput(field=f"{field}.{key}", value=value, fix=fix)
        stated[target] = allowed(value)
    return consistent(ShareConfig(**stated), field=field)


def merge(
    *, class_configs: Sequence[ShareConfig], claim_configs: Sequence[ShareConfig], field: str
) -> ShareConfig:
    """What counts for one request: the claim's wish before the class's (ResourceClaim API, `config.source`).

    `overQuota`, `computePolicy` and `priority` are the administrator's: a claim can make them stricter, never
    milder. Raises InvalidInput, naming `field`, when two configurations of the same source contradict each
    other.
    """
    by_class = _agreed(class_configs, field=field, source="class")
    by_claim = _agreed(claim_configs, field=field, source="claim")
    bounded: dict[str, Any] = {}
    for target in _BOUNDED:
        policy, wish = getattr(by_class, target), getattr(by_claim, target)
        bounded[target] = wish if policy is None else stricter(policy, wish)
    way = by_claim if by_claim.sharing else by_class
    return ShareConfig(sharing=way.sharing, time_slice=way.time_slice, **bounded)


def stricter(policy: _Order, wish: _Order | None) -> _Order:
    """`policy`, or a claim's `wish` where that is stricter."""
    return policy if wish is None else max(policy, wish, key=tuple(type(policy)).index)


def in_force(default: _Order, *, by_class: str, by_claim: str) -> _Order:
    """The policy of a prepared share: its class's word, else `default`, the node's for its namespace; a claim
    makes it stricter. An empty word says nothing."""
    kind = type(default)
    return stricter(kind(by_class) if by_class else default, kind(by_claim) if by_claim else None)


def _agreed(configs: Sequence[ShareConfig], *, field: str, source: str) -> ShareConfig:
    agreed: dict[str, Any] = {}
    for name, (target, _) in _FIELDS.items():
        values = dict.fromkeys(value for config in configs if (value := getattr(config, target)) is not None)
        if len(values) > 1:
            fix = f"the {source} states {name} twice for one request, and not the same; keep one"
            raise InvalidInput(field=field, value=" and ".join(values), fix=fix)
        agreed[target] = next(iter(values), None)
    return consistent(ShareConfig(**agreed), field=field)


def consistent(config: ShareConfig, *, field: str) -> ShareConfig:
    """`config`, unless one of its wishes makes another one meaningless."""
    if config.compute_policy is not None and config.sharing in _UNPACED:
        fix = f"with sharing {config.sharing} no share is paced; keep one of the two"
        raise InvalidInput(field=f"{field}.computePolicy", value=str(config.compute_policy), fix=fix)
    if config.time_slice is not None and config.sharing is not Sharing.TIMESLICE:
        fix = f"goes with sharing: {Sharing.TIMESLICE} only; state that beside it, or leave this out"
        raise InvalidInput(field=f"{field}.timeSlice", value=str(config.time_slice), fix=fix)
    return config
