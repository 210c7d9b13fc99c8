# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes on one machine, for tests: stock programs, one or more nodes, ready in seconds."""

from .api import Api, ApiError, Manifests, Object
from .audit import AuditLog
from .cluster import Cluster
from .images import BUSYBOX_IMAGE, PAUSE_IMAGE
from .system import TestbedError

__all__ = [
    "BUSYBOX_IMAGE",
    "PAUSE_IMAGE",
    "Api",
    "ApiError",
    "AuditLog",
    "Cluster",
    "Manifests",
    "Object",
    "TestbedError",
]
