# SPDX-License-Identifier: Apache-2.0
"""GPUs of this node that somebody else hands out as well: two owners would book one card twice. Pure.

Three places tell: kubelet's checkpoint of device plugins, other drivers' ResourceSlices, HAMi's annotations.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from aliquot_agent.nvml import Gpu
from aliquot_api.names import DRIVER

PLUGIN_CHECKPOINT: Final = "kubelet_internal_checkpoint"
_HAMI_DEVICES: Final = "hami.io/node-nvidia-register"
_HAMI_HANDSHAKE: Final = "hami.io/node-handshake"
_VENDOR: Final = "nvidia.com/"
_UUID: Final = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

Owners = Mapping[str, str]
"""GPU UUID -> who else hands it out."""


class Unreadable(ValueError):
    """Kubelet's checkpoint is not as we know it."""


def by_device_plugin(checkpoint: str, gpus: Sequence[Gpu]) -> Owners:
    """GPUs that a device plugin has registered with kubelet, or that a pod holds through one."""
    try:
        data = json.loads(checkpoint)["Data"]
        registered = data.get("RegisteredDevices") or {}
        held = data.get("PodDeviceEntries") or []
        pairs = [(str(resource), list(ids or [])) for resource, ids in registered.items()]
        pairs += [(str(entry["ResourceName"]), list(_held_ids(entry.get("DeviceIDs")))) for entry in held]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"kubelet's checkpoint of device plugins cannot be read: {error!r}") from error
    owners: dict[str, str] = {}
    for resource, ids in pairs:
        for gpu in gpus:
            if any(_names(str(each), gpu=gpu, vendor=resource.startswith(_VENDOR)) for each in ids):
                owners.setdefault(gpu.uuid, f"a device plugin hands it out as {resource}")
    return owners


def by_slices(slices: Sequence[Mapping[str, Any]], gpus: Sequence[Gpu], bus_ids: Mapping[str, str]) -> Owners:
    """GPUs that another driver publishes for this node; `bus_ids` by GPU UUID, as the kernel writes them."""
    owners: dict[str, str] = {}
    for slice_ in slices:
        spec = slice_.get("spec") or {}
        driver = spec.get("driver")
        if driver == DRIVER:
            continue
        for device in spec.get("devices") or []:
            texts = set(_texts(device.get("attributes") or {}))
            for gpu in gpus:
                if gpu.uuid.lower() in texts or bus_ids.get(gpu.uuid, "?").lower() in texts:
                    owners.setdefault(gpu.uuid, f"DRA driver {driver} publishes it too")
    return owners


def by_hami(annotations: Mapping[str, str], gpus: Sequence[Gpu]) -> Owners:
    """GPUs that HAMi's scheduler counts on this node, unless HAMi itself says that they are gone."""
    if annotations.get(_HAMI_HANDSHAKE, "").startswith("Deleted"):
        return {}
    listed = {found.lower() for found in _UUID.findall(annotations.get(_HAMI_DEVICES, ""))}
    return {
        gpu.uuid: f"HAMi hands it out (node annotation {_HAMI_DEVICES})"
        for gpu in gpus
        if gpu.uuid.lower() in listed
    }


def _names(device_id: str, *, gpu: Gpu, vendor: bool) -> bool:
    """Whether a device plugin's ID means this GPU: its UUID, plain or with a replica behind, or its index."""
    if gpu.uuid.lower() in device_id.lower():
        return True
    return vendor and device_id.partition("::")[0] == str(gpu.index)


def _held_ids(by_numa_node: object) -> Iterator[str]:
    """IDs of a pod's devices, which kubelet groups by NUMA node."""
    if isinstance(by_numa_node, Mapping):
        for ids in by_numa_node.values():
            yield from map(str, ids or [])
    elif isinstance(by_numa_node, list):
        yield from map(str, by_numa_node)


def _texts(attributes: Mapping[str, Any]) -> Iterator[str]:
    for value in attributes.values():
        text = value.get("string") if isinstance(value, Mapping) else None
        if isinstance(text, str):
            yield text.lower()
