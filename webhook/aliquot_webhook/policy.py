# SPDX-License-Identifier: Apache-2.0
"""What the administrator and the server's version decide about requests."""

from dataclasses import dataclass, field, replace
from typing import Final

from aliquot_api import names

DEFAULT_SHARES: Final = 16
"""Tenants per GPU that a node publishes unless it is configured otherwise."""


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """The extended resources that we take out of pods; an administrator may rename them."""

    count: str = names.RESOURCE_COUNT
    memory: str = names.RESOURCE_MEMORY
    memory_percent: str = names.RESOURCE_MEMORY_PERCENT
    cores: str = names.RESOURCE_CORES
    priority: str = names.RESOURCE_PRIORITY

    def all(self) -> frozenset[str]:
        """Every handled name. None of them may stay in a pod: no node advertises them."""
        return frozenset((self.count, self.memory, self.memory_percent, self.cores, self.priority))


@dataclass(frozen=True, slots=True)
class Policy:
    """Input of `rewrite` that is the same for every pod."""

    resources: ResourceNames = field(default_factory=ResourceNames)
    default_memory_mib: int = 0
    """Per GPU, for containers that state no memory; 0: all of it (HAMi's defaultMemory)."""
    default_cores_percent: int = 0
    """For containers that state no cores and get no card for themselves (defaultCores)."""
    default_count: int = 1
    """For containers that state memory or cores only (defaultGPUNum)."""
    memory_factor: int = 1
    """MiB that one unit of the memory resource stands for (memoryFactor)."""
    allow_privileged_whole_gpu: bool = False
    """A privileged container sees every GPU of its node: whole cards only, and only where this is set."""
    guarded_dirs: tuple[str, ...] = ()
    """Host folders of agents that are not in their usual places: no pod with a share may mount them."""
    allow_without_gpus: bool = True
    """Admit pods while no node publishes a GPU (they wait: pools that grow on demand need that)."""
    count_is_distinct: bool = True
    """The server gives `count: N` N different GPUs: from Kubernetes 1.36; 1.35 gives one GPU N times."""
    is_budgeted: bool = False
    """The namespace has a budget, so claims are counted as they are made, also those of admitted pods."""
    max_devices: int = 32
    """AllocationResultsMaxSize of resource.k8s.io/v1, for one claim."""
    max_requests: int = 8
    """GPU requests per pod."""
    max_search: int = 100_000
    """Ways in which the scheduler may try to place a pod on one node before it gives up; see `search`."""

    def on(self, *, count_is_distinct: bool, is_budgeted: bool = False) -> "Policy":
        """The same on such a server in such a namespace; the very same if that is what it is for."""
        if (count_is_distinct, is_budgeted) == (self.count_is_distinct, self.is_budgeted):
            return self
        return replace(self, count_is_distinct=count_is_distinct, is_budgeted=is_budgeted)
