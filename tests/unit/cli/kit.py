# SPDX-License-Identifier: Apache-2.0
"""Slices, claims and pods as an API server gives them, for the command's pure parts."""

from typing import Any

Object = dict[str, Any]
MIB = 1024**2


def device(
    name: str = "gpu-1",
    *,
    memory: str = "22578Mi",
    product: str = "NVIDIA L4",
    shares: int = 16,
    taints: list[Object] | None = None,
    **attributes: Any,
) -> Object:
    """A shareable GPU, as an agent publishes it."""
    span = {"min": "1Mi", "step": "1Mi", "max": memory}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {
            "uuid": {"string": name.replace("gpu-", "GPU-")},
            "productName": {"string": product},
            "memoryBytes": {"int": int(memory.removesuffix("Mi")) * MIB},
            "sharing": {"string": "shim"},
            "oversubscribed": {"bool": False},
            "cudaComputeCapability": {"version": "8.9.0"},
            **attributes,
        },
        "capacity": {
            "memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": span}},
            "cores": {
                "value": "100",
                "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1", "max": "100"}},
            },
            "shares": {
                "value": str(shares),
                "requestPolicy": {
                    "default": "1",
                    "validRange": {"min": "1", "step": "1", "max": str(shares)},
                },
            },
        },
        **({"taints": taints} if taints else {}),
    }


def resource_slice(
    node: str, *devices: Object, generation: int = 1, driver: str = "gpu.aliquot.dev"
) -> Object:
    """A node's slice."""
    return {
        "metadata": {"name": f"00000-{driver}-{node}-{generation}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def allocated(
    name: str,
    *,
    device: str = "gpu-1",
    node: str = "n1",
    pod: str = "",
    data: Object | None = None,
    conditions: list[Object] | None = None,
    **consumed: str,
) -> Object:
    """A claim with a share of a GPU, and what the agent has reported of it."""
    place = {"driver": "gpu.aliquot.dev", "pool": node, "device": device, "shareID": f"share-of-{name}"}
    result = {**place, "request": "main", "consumedCapacity": consumed}
    status: Object = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod or name, "uid": f"uid-of-{pod or name}"}],
    }
    if data is not None:
        status["devices"] = [{**place, "data": data, "conditions": conditions or []}]
    return {"metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}"}, "status": status}


def request(name: str = "main", *, count: int = 1, selectors: tuple[str, ...] = (), **wanted: Any) -> Object:
    """A device request of a claim; `wanted` are quantities by capacity."""
    return {
        "name": name,
        "exactly": {
            "deviceClassName": "gpu.aliquot.dev",
            "count": count,
            "capacity": {"requests": wanted},
            "selectors": [{"cel": {"expression": each}} for each in selectors],
        },
    }
