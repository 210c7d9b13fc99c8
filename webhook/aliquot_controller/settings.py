# SPDX-License-Identifier: Apache-2.0
"""Settings of the controller."""

import enum
from dataclasses import dataclass
from typing import Final

from aliquot_api.errors import InvalidInput
from aliquot_webhook.settings import CommonSettings, setting, want_positive

NAME: Final = "aliquot-controller"
"""Of the Deployment, the ServiceAccount and the Lease."""


class StaleClaims(enum.StrEnum):
    """What happens to claims that keep GPUs for pods that are gone."""

    OFF = "off"
    REPORT = "report"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings(CommonSettings):
    """All settings of the controller."""

    host: str = setting("0.0.0.0", "address of /metrics and /healthz")
    port: int = setting(8081, "port of /metrics and /healthz")
    identity: str = setting(
        "", "name of this candidate for the lease; empty: the host name, which is the pod's"
    )
    lease_s: float = setting(15.0, "another controller takes over when the leader is silent for this time")
    collect_interval_s: float = setting(60.0, "between two looks for unused claim templates")
    budget_interval_s: float = setting(10.0, "between two comparisons of budgets with claims")
    in_flight_s: float = setting(
        90.0, "a claim that has not appeared by then never will (request time-out + skew)"
    )
    stale_claims: str = setting("release", "claims held for pods that are gone: off, report or release")
    stale_after_s: float = setting(300.0, "a claim is stale when its pods have been gone for this time")
    stale_interval_s: float = setting(60.0, "between two looks for stale claims")
    keep_ca_bundle: bool = setting(True, "write caBundle (false: cert-manager or somebody else does)")

    def __post_init__(self) -> None:
        CommonSettings.__post_init__(self)
        want_positive(
            self,
            *("lease_s", "collect_interval_s", "budget_interval_s", "in_flight_s"),
            *("stale_after_s", "stale_interval_s"),
        )
        if self.stale_claims not in tuple(StaleClaims):
            raise InvalidInput(
                field="stale_claims", value=self.stale_claims, fix=f"want one of {', '.join(StaleClaims)}"
            )
