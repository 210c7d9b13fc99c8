# SPDX-License-Identifier: Apache-2.0
"""`ShareConfig`, the opaque configuration of our devices in DeviceClasses and claims, decoded strictly.

Webhook and agent use this same code, so that what admission accepts, Prepare understands.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aliquot_api.errors import InvalidInput
from aliquot_api.names import DRIVER

API_VERSION: Final = f"{DRIVER}/v1alpha1"
KIND: Final = "ShareConfig"


class Sharing(enum.StrEnum):
    """How a share is kept apart from its neighbours."""

    SHIM = "shim"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """Wishes of a claim that are not capacities."""

    sharing: Sharing = Sharing.SHIM

    def encode(self) -> dict[str, str]:
        """As `opaque.parameters`; `decode` gives an equal object back."""
        return {"apiVersion": API_VERSION, "kind": KIND, "sharing": str(self.sharing)}


def decode(parameters: object, *, field: str) -> ShareConfig:
    """`opaque.parameters` at `field` as a ShareConfig.

    Raises InvalidInput for anything but an object of our version and kind with known fields.
    """
    if not isinstance(parameters, Mapping):
        raise InvalidInput(field=field, value=parameters, fix=f"want an object of kind {KIND}")
    for key, want in (("apiVersion", API_VERSION), ("kind", KIND)):
        if parameters.get(key) != want:
            raise InvalidInput(field=f"{field}.{key}", value=parameters.get(key), fix=f"want {want!r}")
    for key in parameters:
        if key not in ("apiVersion", "kind", "sharing"):
            fix = "unknown field; want sharing"
            raise InvalidInput(field=f"{field}.{key}", value=parameters[key], fix=fix)
    sharing = parameters.get("sharing", Sharing.SHIM)
    if sharing not in tuple(Sharing):
        raise InvalidInput(
            field=f"{field}.sharing", value=sharing, fix=f"want one of {', '.join(sorted(Sharing))}"
        )
    return ShareConfig(sharing=Sharing(sharing))
