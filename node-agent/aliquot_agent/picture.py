# SPDX-License-Identifier: Apache-2.0
"""What the watcher saw, as values for reports, metrics and resizes."""

from dataclasses import dataclass

from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.marks import Mark
from aliquot_agent.region import Usage


@dataclass(frozen=True, slots=True)
class Observation:
    """What one share was seen to use; from NVML alone while its ledger is damaged."""

    claim: PreparedClaim
    share: PreparedShare
    usage: Usage
    measured_bytes: int | None = None
    """What the driver says of its processes; None where it said nothing."""
    drift_bytes: int = 0
    """What the driver says beyond what the ledger counts."""
    faults: tuple[Mark, ...] = ()
    within_since: str = ""
    """When the share was last found within its quota again; empty: always was."""
    warned: int = 0
    killed: int = 0
    evicted: int = 0
    host_pids: tuple[int, ...] = ()
    """Its processes on the GPU."""


@dataclass(frozen=True, slots=True)
class Picture:
    """All shares at one instant; by GPU UUID, processes in no ledger and bytes held outside any share."""

    observations: tuple[Observation, ...] = ()
    unaccounted: tuple[tuple[str, int], ...] = ()
    outside: tuple[tuple[str, int], ...] = ()
