# SPDX-License-Identifier: Apache-2.0
"""`ShareConfig`, the opaque configuration of our devices in DeviceClasses and claims, decoded strictly.

Webhook and agent use this same code, so that what admission accepts, Prepare understands.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot_api.errors import InvalidInput
from aliquot_api.names import DRIVER

API_VERSION: Final = f"{DRIVER}/v1alpha1"
KIND: Final = "ShareConfig"


class Sharing(enum.StrEnum):
    """How a share is kept apart from its neighbours."""

    SHIM = "shim"
    TIMESLICE = "timeslice"
    MPS = "mps"
    EXCLUSIVE = "exclusive"


class OverQuota(enum.StrEnum):
    """What happens to a process that holds more than its share, from the mildest to the strictest."""

    WARN = "warn"
    KILL = "kill"
    EVICT = "evict"


_STRICTNESS: Final = tuple(OverQuota)
_FIELDS: Final[Mapping[str, type[enum.StrEnum]]] = {"sharing": Sharing, "overQuota": OverQuota}


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """Wishes of a claim or class that are not capacities; None is not stated."""

    sharing: Sharing | None = None
    over_quota: OverQuota | None = None

    def encode(self) -> dict[str, str]:
        """As `opaque.parameters`; `decode` gives an equal object back."""
        stated = {"sharing": self.sharing, "overQuota": self.over_quota}
        header = {"apiVersion": API_VERSION, "kind": KIND}
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
    stated: dict[str, enum.StrEnum] = {}
    for key, value in parameters.items():
        if key in ("apiVersion", "kind"):
            continue
        allowed = _FIELDS.get(key)
        if allowed is None:
            fix = f"unknown field; want one of {', '.join(_FIELDS)}"
            raise InvalidInput(field=f"{field}.{key}", value=value, fix=fix)
        if value not in tuple(allowed):
            fix = f"want one of {', '.join(sorted(allowed))}"
            raise InvalidInput(field=f"{field}.{key}", value=value, fix=fix)
        stated[key] = allowed(value)
    sharing, over_quota = stated.get("sharing"), stated.get("overQuota")
    return ShareConfig(
        sharing=None if sharing is None else Sharing(sharing),
        over_quota=None if over_quota is None else OverQuota(over_quota),
    )


def merge(
    *, class_configs: Sequence[ShareConfig], claim_configs: Sequence[ShareConfig], field: str
) -> ShareConfig:
    """What counts for one request: the claim's wish before the class's (ResourceClaim API, `config.source`).

    `over_quota` is the administrator's: a claim can make it stricter, never milder. Raises InvalidInput,
    naming `field`, when two configurations of the same source contradict each other.
    """
    by_class = _agreed(class_configs, field=field, source="class")
    by_claim = _agreed(claim_configs, field=field, source="claim")
    over_quota = by_claim.over_quota
    if by_class.over_quota is not None:
        over_quota = stricter(by_class.over_quota, by_claim.over_quota)
    return ShareConfig(sharing=by_claim.sharing or by_class.sharing, over_quota=over_quota)


def stricter(policy: OverQuota, wish: OverQuota | None) -> OverQuota:
    """`policy`, or a claim's `wish` where that is stricter."""
    return policy if wish is None else max(policy, wish, key=_STRICTNESS.index)


def _agreed(configs: Sequence[ShareConfig], *, field: str, source: str) -> ShareConfig:
    sharing = {config.sharing: None for config in configs if config.sharing is not None}
    over_quota = {config.over_quota: None for config in configs if config.over_quota is not None}
    for name, values in (("sharing", sharing), ("overQuota", over_quota)):
        if len(values) > 1:
            fix = f"the {source} states {name} twice for one request, and not the same; keep one"
            raise InvalidInput(field=field, value=" and ".join(values), fix=fix)
    return ShareConfig(sharing=next(iter(sharing), None), over_quota=next(iter(over_quota), None))
