# SPDX-License-Identifier: Apache-2.0
"""Prepared shares and claims as values, without a node."""

from typing import Any

from aliquot_agent.checkpoint import PreparedClaim, PreparedShare

GIB = 1024**3


def make_share(**changes: Any) -> PreparedShare:
    """A share of 8 GiB."""
    values: dict[str, Any] = {
        "share": "share-a",
        "request": "main",
        "pool": "node-1",
        "device": "gpu-a",
        "gpu_uuid": "GPU-a",
        "whole": False,
        "memory_bytes": 8 * GIB,
        "cores_percent": 0,
        "shares": 1,
        "context_estimate_bytes": 0,
    }
    return PreparedShare(**(values | changes))


def make_prepared(*shares: PreparedShare, **changes: Any) -> PreparedClaim:
    """A prepared claim."""
    values: dict[str, Any] = {
        "uid": "uid-a",
        "namespace": "team-a",
        "name": "claim-a",
        "boot_id": "boot",
        "prepared_at": "2026-01-02T03:04:05Z",
        "library": "/lib",
        "shares": shares or (make_share(),),
    }
    return PreparedClaim(**(values | changes))
