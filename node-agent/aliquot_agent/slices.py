# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices of one node as data: built, compared with what the server has, planned. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aliquot_agent.devices import Device
from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.names import DRIVER, RESOURCE_GROUP, RESOURCE_VERSION

Object = dict[str, Any]

_NAME_PREFIX: Final = "00000"
"""From 1.36 the scheduler takes slices in the order of their names."""
_OURS: Final = frozenset({"allowMultipleAllocations", "attributes", "capacity", "name", "taints"})
"""Fields of a device that the agent decides."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes that bring the server to what we want, in this order; empty when it is there."""

    delete: tuple[Object, ...] = ()
    replace: Object | None = None
    create: Object | None = None


def build(*, node: str, node_uid: str, devices: Sequence[Device], generation: int) -> Object:
    """The one slice of a node's pool; without devices it says that the pool is known and empty."""
    return {
        "apiVersion": f"{RESOURCE_GROUP}/{RESOURCE_VERSION}",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": f"{_NAME_PREFIX}-{DRIVER}-{node}-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def plan(known: Sequence[Object], *, node: str, node_uid: str, devices: Sequence[Device]) -> Plan:
    """What to write so that `known`, our slices on the server, become one slice with `devices`."""
    ordered = sorted(known, key=lambda slice_: str(slice_["metadata"]["name"]))
    generation = max((int(slice_["spec"]["pool"]["generation"]) for slice_ in ordered), default=0)
    want = build(node=node, node_uid=node_uid, devices=devices, generation=generation + 1)
    if not ordered:
        return Plan(create=want)
    first, *rest = ordered
    if _current(first, want=want, newest=generation):
        return Plan(delete=tuple(rest))
    metadata = first["metadata"]
    want["metadata"] = {
        "name": metadata["name"],
        "uid": metadata["uid"],
        "resourceVersion": metadata["resourceVersion"],
        "ownerReferences": want["metadata"]["ownerReferences"],
    }
    return Plan(delete=tuple(rest), replace=want)


def dropped_fields(sent: object, stored: object, path: str = "spec") -> Iterator[str]:
    """Paths of fields that were sent and did not come back, as happens behind a disabled feature gate."""
    if isinstance(sent, Mapping):
        other = stored if isinstance(stored, Mapping) else {}
        for key, value in sent.items():
            if key not in other and value not in ([], {}):
                yield f"{path}.{key}"
            else:
                yield from dropped_fields(value, other.get(key), f"{path}.{key}")
    elif isinstance(sent, list):
        others = stored if isinstance(stored, list) else []
        for index, value in enumerate(sent):
            yield from dropped_fields(
                value, others[index] if index < len(others) else None, f"{path}[{index}]"
            )


def _current(slice_: Object, *, want: Object, newest: int) -> bool:
    have, spec = slice_["spec"], want["spec"]
    owners = [owner.get("uid") for owner in slice_["metadata"].get("ownerReferences") or []]
    return (
        owners == [owner["uid"] for owner in want["metadata"]["ownerReferences"]]
        and have["pool"] == {**spec["pool"], "generation": newest}
        and _canonical(have.get("devices") or []) == _canonical(spec["devices"])
    )


def _canonical(devices: Sequence[Mapping[str, Any]]) -> list[object]:
    """Devices with quantities as numbers (the server may spell them differently) and our fields only."""
    return [
        {key: _comparable(key, value) for key, value in device.items() if key in _OURS and value != []}
        for device in devices
    ]


def _comparable(key: str, value: Any) -> object:
    if key == "taints":  # the server may note another time than ours
        return [{name: text for name, text in taint.items() if name != "timeAdded"} for taint in value]
    return _numbers(value) if key == "capacity" else value


def _numbers(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    try:
        return quantity.parse(str(value), field="capacity")
    except InvalidInput:
        return value
