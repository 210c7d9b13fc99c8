# SPDX-License-Identifier: Apache-2.0
"""Pods, inventories and a strict JSON Patch, for the webhook's tests."""

import copy
import json
from collections.abc import Iterable

from aliquot_api import names
from aliquot_api.quantity import MIB
from aliquot_webhook.inventory import NUMA_NODE, PCIE_ROOT, Gpu, Inventory, LiveInventory
from aliquot_webhook.patch import Operation

L4 = Gpu(memory_bytes=23034 * MIB, shares=16, product="NVIDIA L4")
H100 = Gpu(memory_bytes=81559 * MIB, shares=16, product="NVIDIA H100 80GB HBM3")


def inventory(*nodes: Iterable[Gpu]) -> Inventory:
    """A cluster of these nodes, through the slices that their agents would publish."""
    live = LiveInventory()
    live.replace([resource_slice(f"node-{index}", gpus) for index, gpus in enumerate(nodes)])
    return live.snapshot()


def resource_slice(
    node: str, gpus: Iterable[Gpu], *, generation: int = 1, name: str = ""
) -> dict[str, object]:
    """The slice that an agent publishes."""
    return {
        "metadata": {"name": name or f"00000-{names.DRIVER}-{node}", "resourceVersion": "1"},
        "spec": {
            "driver": names.DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{index}",
                    "allowMultipleAllocations": True,
                    "attributes": {
                        "uuid": {"string": f"GPU-{node}-{index}"},
                        "minor": {"int": index},
                        "memoryBytes": {"int": gpu.memory_bytes},
                        "productName": {"string": gpu.product},
                        "sharing": {"string": gpu.sharing},
                        "timeSlice": {"string": gpu.time_slice or "default"},
                        "oversubscribed": {"bool": False},
                    }
                    | ({} if gpu.numa_node is None else {NUMA_NODE: {"int": gpu.numa_node}})
                    | ({} if gpu.pcie_root is None else {PCIE_ROOT: {"string": gpu.pcie_root}}),
                    "capacity": {
                        "memory": {"value": f"{gpu.memory_bytes // MIB}Mi"},
                        "cores": {"value": "100"},
                        "shares": {"value": str(gpu.shares)},
                    },
                }
                for index, gpu in enumerate(gpus)
            ],
        },
    }


def container(name: str = "main", **limits: str) -> dict[str, object]:
    """A container whose limits are given as vgpu="1", gpumem="8000"."""
    resources = {"limits": {f"nvidia.com/{key}": value for key, value in limits.items()}} if limits else {}
    return {"name": name, "image": "example/train", "resources": resources}


def pod(*containers: dict[str, object], **spec: object) -> dict[str, object]:
    """A pod of these containers."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "train-", "namespace": "team-a", "labels": {"app": "train"}},
        "spec": {"containers": list(containers), **spec},
    }


def review(pod: object, **request: object) -> dict[str, object]:
    """The AdmissionReview in which an API server sends `pod`."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a",
            "operation": "CREATE",
            "object": pod,
            "dryRun": False,
            **request,
        },
    }


def apply(document: object, operations: Iterable[Operation]) -> object:
    """`document` after a JSON Patch, as RFC 6902 says, with an error for each step that does not fit."""
    result = copy.deepcopy(document)
    for operation in operations:
        json.dumps(operation)
        parent = result
        *steps, last = [
            step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]
        ]
        for step in steps:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]  # type: ignore[index]
        if isinstance(parent, list):
            index = len(parent) if last == "-" else int(last)
            assert 0 <= index <= len(parent) - (operation["op"] != "add")
            if operation["op"] == "add":
                parent.insert(index, operation["value"])
            elif operation["op"] == "replace":
                parent[index] = operation["value"]
            else:
                del parent[index]
        else:
            assert isinstance(parent, dict)
            assert operation["op"] == "add" or last in parent
            if operation["op"] == "remove":
                del parent[last]
            else:
                parent[last] = operation["value"]
    return result
