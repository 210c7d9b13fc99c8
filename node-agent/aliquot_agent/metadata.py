# SPDX-License-Identifier: Apache-2.0
"""Device metadata files (KEP-5304): what a program can read about its devices without our library. Pure.

One file per request, a stream of the same object in both versions that exist, the newer one first: readers
take the first that they know. Amounts are not in the KEP's format, so they come as attributes of ours.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.devices import Attribute
from aliquot_api.names import DRIVER

VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
KIND: Final = "DeviceMetadata"
_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"

Attributes = Mapping[str, Attribute]


def file_name(request: str) -> str:
    """Name of a request's file in the claim's directory; share IDs have no dot."""
    return f"{request}.json"


def container_path(claim: PreparedClaim, request: str) -> str:
    """Where the container finds it: by the pod's name for the claim where it came from a template."""
    kind, name = "resourceclaims", claim.name
    if claim.pod_claim:
        kind, name = "resourceclaimtemplates", claim.pod_claim
    return f"{_ROOT}/{kind}/{name}/{request}/{DRIVER}-metadata.json"


def encode(claim: PreparedClaim, request: str, *, attributes: Callable[[str], Attributes]) -> bytes:
    """The file of one request; `attributes` answers what the slice says of a device."""
    shares = [share for share in claim.shares if share.request == request]
    body: dict[str, Any] = {
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "uid": claim.uid,
            "generation": 1,
        },
        "requests": [{"name": request, "devices": list(_devices(shares, attributes))}],
    }
    if claim.pod_claim:
        body["podClaimName"] = claim.pod_claim
    text = json.dumps(body).removeprefix("{")
    return "".join(
        f'{{"apiVersion": "{version}", "kind": "{KIND}", {text}\n' for version in VERSIONS
    ).encode()


def _devices(
    shares: Iterable[PreparedShare], attributes: Callable[[str], Attributes]
) -> Iterable[dict[str, Any]]:
    for share in shares:
        ours: dict[str, Attribute] = {
            "shareID": {"string": share.share},
            "consumedMemoryBytes": {"int": share.memory_bytes},
            "consumedCores": {"int": share.cores_percent},
        }
        yield {
            "driver": DRIVER,
            "pool": share.pool,
            "name": share.device,
            "attributes": {"uuid": {"string": share.gpu_uuid}, **attributes(share.device), **ours},
        }
