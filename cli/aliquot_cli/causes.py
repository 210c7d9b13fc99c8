# SPDX-License-Identifier: Apache-2.0
"""What is known of a pod, and what can be the matter with it: the words of `aliquot explain`."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aliquot_api import names
from aliquot_api.wire import JsonObject
from aliquot_cli.cards import Card
from aliquot_cli.placing import Placement

CORDON_TAINT: Final = f"{names.DRIVER}/cordoned"
UNHEALTHY_TAINT: Final = f"{names.DRIVER}/unhealthy"


class Cause(enum.StrEnum):
    """What is the matter; the word for machines."""

    REFUSED = "refused"
    GATE_OFF = "gate-off"
    NOT_CONVERTED = "not-converted"
    NO_GPU_WANTED = "no-gpu-wanted"
    NO_CLASS = "no-device-class"
    NO_GPUS = "no-gpus"
    TEMPLATE_MISSING = "template-missing"
    CLAIM_MISSING = "claim-missing"
    CLAIM_REFUSED = "claim-refused"
    CLAIM_PENDING = "claim-pending"
    FOREIGN_SCHEDULER = "foreign-scheduler"
    MEMORY = "memory"
    CORES = "cores"
    SHARES = "shares"
    WHOLE = "whole-gpu-shared"
    TAINTED = "gpu-tainted"
    SELECTOR = "selector"
    UNKNOWN = "selector-unknown"
    TOGETHER = "several-gpus"
    NODE = "node"
    PREPARE = "prepare-failing"
    STARTING = "starting"
    FITS = "fits"
    RUNNING = "running"
    ENDED = "ended"


WELL: Final = frozenset({Cause.FITS, Cause.RUNNING, Cause.ENDED, Cause.NO_GPU_WANTED, Cause.STARTING})


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause, for people."""

    cause: Cause
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was gathered about one pod."""

    pod: JsonObject
    events: Sequence[JsonObject] = ()
    """Of the pod and of its claims, oldest first."""
    specs: Mapping[str, JsonObject | None] = field(default_factory=dict)
    """Spec of each of the pod's claims by its name in the pod; None where there is neither claim nor
    template."""
    claims: Mapping[str, JsonObject] = field(default_factory=dict)
    """Those that exist, by the same name."""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Selectors of each DeviceClass."""
    nodes: Sequence[JsonObject] = ()
    others: Sequence[JsonObject] = ()
    """All pods."""
    cards: Sequence[Card] = ()
    namespace: JsonObject = field(default_factory=dict)
    gate_problem: str = ""
    agents: Mapping[str, bool] = field(default_factory=dict)
    """Nodes that have an agent, and whether it is ready."""


@dataclass(frozen=True, slots=True)
class NodeLook:
    """What one node says."""

    node: str
    refusals: tuple[str, ...]
    placement: Placement


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer."""

    findings: tuple[Finding, ...]
    looks: tuple[NodeLook, ...] = ()
    scheduler: str = ""
    """The scheduler's own words."""

    @property
    def fits_on(self) -> tuple[str, ...]:
        """Nodes on which the pod would run."""
        return tuple(look.node for look in self.looks if look.placement.fits and not look.refusals)

    @property
    def is_well(self) -> bool:
        """Whether nothing keeps the pod from running."""
        return all(finding.cause in WELL for finding in self.findings)
