# SPDX-License-Identifier: Apache-2.0
"""A share whose cores are held: by whose word and how, and what is known of its GPU time. Pure."""

from dataclasses import dataclass
from pathlib import Path

from aliquot_agent.attribution import Key
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.nodepolicy import NodePolicy
from aliquot_api import config
from aliquot_api.config import ComputePolicy, Priority, Sharing


@dataclass(frozen=True, slots=True)
class PacedShare:
    """A share whose cores are to be held."""

    key: Key
    path: Path
    gpu_uuid: str
    reserved_millipercent: int
    policy: ComputePolicy
    priority: Priority = Priority.LOW


@dataclass(frozen=True, slots=True)
class Paced:
    """What is known of a share's GPU time, for metrics and conditions."""

    used_ns: int
    """By the driver, since this agent runs."""
    granted_ns: int
    """By the ledger."""
    reserved_millipercent: int
    lent_millipercent: int
    factor_ppm: int
    escape: str = ""
    """How it uses more than it may have; empty: it does not."""


def paced_share(claim: PreparedClaim, share: PreparedShare, *, path: Path, node: NodePolicy) -> PacedShare:
    """How a prepared share's cores are to be held."""
    return PacedShare(
        key=(claim.uid, share.share),
        path=path,
        gpu_uuid=share.gpu_uuid,
        reserved_millipercent=share.cores_percent * 1000,
        policy=policy_of(share, node=node, namespace=claim.namespace),
        priority=Priority(share.priority) if share.priority else Priority.LOW,
    )


def policy_of(share: PreparedShare, *, node: NodePolicy, namespace: str) -> ComputePolicy:
    """A share's policy: its class's, else its namespace's, else the node's; a claim makes it stricter.

    Where the driver divides the GPU, by time or by SMs, nothing is paced.
    """
    if share.sharing != Sharing.SHIM:
        return ComputePolicy.OFF
    default = node.compute_policy(namespace)
    return config.in_force(default, by_class=share.class_compute_policy, by_claim=share.claim_compute_policy)
