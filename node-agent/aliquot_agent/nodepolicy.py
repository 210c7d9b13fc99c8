# SPDX-License-Identifier: Apache-2.0
"""What administrators decide about a node and its GPUs, as values, and what counts for one node. Pure.

The document that they write is decoded in `nodeconfig`.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aliquot_api import modes
from aliquot_api.config import ComputePolicy, OverQuota
from aliquot_api.modes import Mode
from aliquot_api.quantity import MIB

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, which say nothing about the GPU (NVIDIA's XID catalogue)."""


class Order(enum.StrEnum):
    """In which order a node's GPUs are published: the scheduler takes the first that fits."""

    AS_FOUND = "as-found"
    PACKED = "packed"
    """Those with most memory taken first."""
    SPREAD = "spread"
    """Those with least memory taken first."""


class TaintEffect(enum.StrEnum):
    """What a sick GPU's taint does to pods."""

    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class GpuPolicy:
    """What is decided about one GPU."""

    reserve_bytes: int = 0
    """Memory that is never handed out."""
    shares: int = 16
    """Most tenants."""
    sharing: Mode = modes.SHIM
    """`exclusive`: one tenant at a time, who gets all of it, without the shim."""
    publish: bool = True
    """False: not ours; the GPU is left to others."""


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """What is done about sick GPUs."""

    effect: TaintEffect = TaintEffect.NO_SCHEDULE
    ignored_xids: frozenset[int] = APPLICATION_XIDS


@dataclass(frozen=True, slots=True)
class ResizePolicy:
    """What live resize may do."""

    grow: bool = True
    """Beyond what the claim consumed, as accounted growth."""
    most_bytes: int | None = None
    """Largest limit that a share can be resized to; None: what the GPU has."""


@dataclass(frozen=True, slots=True)
class GpuOverride:
    """A wish for some GPUs; None is not stated."""

    uuids: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)

    def covers(self, *, uuid: str, index: int) -> bool:
        """Whether it speaks about this GPU."""
        return uuid.lower() in self.uuids or index in self.indices


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    """What is decided about the tenants of one namespace; None: what counts for the node."""

    over_quota: OverQuota | None = None
    compute: ComputePolicy | None = None


_NOTHING: Final = NamespacePolicy()


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """All that is decided for one node."""

    defaults: GpuPolicy = GpuPolicy()
    order: Order = Order.AS_FOUND
    policy: OverQuota = OverQuota.KILL
    """What happens to a process above its share, where neither class nor namespace says otherwise."""
    compute: ComputePolicy = ComputePolicy.FAIR
    """How cores are held, likewise."""
    tolerance_bytes: int = 64 * MIB
    respect_budgets: bool = True
    """Whether an eviction for too much memory waits for the pod's disruption budget."""
    health: HealthPolicy = HealthPolicy()
    resize: ResizePolicy = ResizePolicy()
    gpus: tuple[GpuOverride, ...] = ()
    namespaces: Mapping[str, NamespacePolicy] = field(default_factory=dict)

    def gpu(self, *, uuid: str, index: int) -> GpuPolicy:
        """What counts for one GPU: the last entry that speaks about it, before the node's own values."""
        found = self.defaults
        for override in self.gpus:
            if override.covers(uuid=uuid, index=index):
                found = replace(found, **override.stated)
        return found

    def over_quota(self, namespace: str) -> OverQuota:
        """The policy of a namespace, else the node's."""
        return self.namespaces.get(namespace, _NOTHING).over_quota or self.policy

    def compute_policy(self, namespace: str) -> ComputePolicy:
        """How the cores of a namespace's shares are held, else the node's way."""
        return self.namespaces.get(namespace, _NOTHING).compute or self.compute


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The whole document, checked."""

    defaults: "Stated"
    nodes: tuple[tuple["Selector", "Stated"], ...]
    namespaces: Mapping[str, NamespacePolicy]

    def resolve(self, *, node: str, labels: Mapping[str, str], base: NodePolicy = NodePolicy()) -> NodePolicy:
        """The policy of a node; `base` counts where the document says nothing."""
        policy = self.defaults.apply(base)
        for selector, stated in self.nodes:
            if selector.covers(node=node, labels=labels):
                policy = stated.apply(policy)
        return replace(policy, namespaces=self.namespaces)


@dataclass(frozen=True, slots=True)
class Selector:
    """Which nodes are meant: one of the names, if there are any, and all of the labels."""

    names: tuple[str, ...]
    labels: Mapping[str, str]

    def covers(self, *, node: str, labels: Mapping[str, str]) -> bool:
        """Whether a node is meant."""
        if self.names and node not in self.names:
            return False
        return all(labels.get(key) == value for key, value in self.labels.items())


@dataclass(frozen=True, slots=True)
class Stated:
    """The settings that one part of the document states, by the names of the dataclasses' fields."""

    gpu: Mapping[str, Any] = field(default_factory=dict)
    node: Mapping[str, Any] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)
    resize: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[GpuOverride, ...] = ()

    def apply(self, policy: NodePolicy) -> NodePolicy:
        """`policy` with what is stated here."""
        return replace(
            policy,
            defaults=replace(policy.defaults, **self.gpu),
            health=replace(policy.health, **self.health),
            resize=replace(policy.resize, **self.resize),
            gpus=(*policy.gpus, *self.gpus),
            **self.node,
        )
