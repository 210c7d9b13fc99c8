# SPDX-License-Identifier: Apache-2.0
"""A GPU as a DRA device: what the scheduler may know about it and how much of it there is. Pure.

Every device has the same attributes of ours, so that CEL never meets an absent one; the standard ones
(resource.kubernetes.io/…) only where they are known.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NotRequired, TypedDict

from aliquot_agent.nodepolicy import GpuPolicy
from aliquot_agent.nvml import Gpu
from aliquot_api import modes, quantity
from aliquot_api.config import TimeSlice
from aliquot_api.modes import Mode
from aliquot_api.names import CAPACITY_CORES, CAPACITY_MEMORY, CAPACITY_SHARES

CORES: Final = 100
LEAST_BYTES: Final = 2 * quantity.MIB
"""The API server wants at least one step above the smallest amount."""
_TEXT_LIMIT: Final = 64
"""Longest string attribute the API server takes."""


class Attribute(TypedDict, total=False):
    """One of the four."""

    string: str
    int: int
    bool: bool
    version: str


class ValidRange(TypedDict):
    """Amounts a share may take."""

    min: str
    step: str
    max: NotRequired[str]


class RequestPolicy(TypedDict):
    """`default` is taken by a claim that does not name this capacity."""

    default: str
    validRange: NotRequired[ValidRange]
    validValues: NotRequired[list[str]]


class Capacity(TypedDict):
    """What there is of one thing."""

    value: str
    requestPolicy: RequestPolicy


class Taint(TypedDict):
    """Keeps new claims away from a device, or ends the pods of those it has."""

    key: str
    value: str
    effect: str
    timeAdded: str


class Device(TypedDict):
    """`spec.devices[]` of a ResourceSlice."""

    name: str
    allowMultipleAllocations: bool
    attributes: dict[str, Attribute]
    capacity: dict[str, Capacity]
    taints: NotRequired[list[Taint]]


@dataclass(frozen=True, slots=True)
class PciPlace:
    """Where a GPU sits; None where sysfs does not say."""

    bus_id: str
    root: str | None
    numa_node: int | None


def device_name(gpu_uuid: str) -> str:
    """DRA device names are DNS labels: the UUID in lower case."""
    return gpu_uuid.lower()


def shareable_bytes(gpu: Gpu, *, reserve_bytes: int) -> int:
    """Memory that shares of this GPU can take together, in whole MiB: the grid the API server wants."""
    return max(0, quantity.round_down(gpu.memory_bytes - reserve_bytes))


def offered_bytes(
    gpu: Gpu, *, policy: GpuPolicy, most_bytes: int | None = None, withheld_bytes: int = 0
) -> int:
    """Memory that the device shows: what is shareable without `withheld_bytes`, `most_bytes` at most."""
    memory_bytes = shareable_bytes(gpu, reserve_bytes=policy.reserve_bytes) - withheld_bytes
    if most_bytes is not None:
        memory_bytes = min(memory_bytes, most_bytes)
    return max(0, quantity.round_down(memory_bytes))


def build(
    gpu: Gpu, *, policy: GpuPolicy, place: PciPlace | None, memory_bytes: int, taint: Taint | None = None
) -> Device:
    """The device of a GPU that offers `memory_bytes`, which are LEAST_BYTES or more."""
    nominal_bytes = shareable_bytes(gpu, reserve_bytes=policy.reserve_bytes)
    device: Device = {
        "name": device_name(gpu.uuid),
        "allowMultipleAllocations": True,
        "attributes": _attributes(gpu, memory_bytes=nominal_bytes, sharing=policy.sharing, place=place),
        "capacity": capacities(memory_bytes, shares=policy.shares),
    }
    if policy.sharing == modes.EXCLUSIVE:
        device["capacity"] = _indivisible(memory_bytes)
    if taint is not None:
        device["taints"] = [taint]
    return device


def capacities(memory_bytes: int, *, shares: int) -> dict[str, Capacity]:
    """What can be consumed, with a policy for each: one without policy would be taken whole."""
    memory = quantity.format_mebibytes(memory_bytes)
    return {
        CAPACITY_MEMORY: _capacity(memory, default=memory, least="1Mi", step="1Mi"),
        CAPACITY_CORES: _capacity(str(CORES), default="0", least="0", step="1"),
        CAPACITY_SHARES: _capacity(str(shares), default="1", least="1", step="1"),
    }


def _indivisible(memory_bytes: int) -> dict[str, Capacity]:
    """Capacities of which every claim takes everything, whatever it asks for."""
    values = {
        CAPACITY_MEMORY: quantity.format_mebibytes(memory_bytes),
        CAPACITY_CORES: str(CORES),
        CAPACITY_SHARES: "1",
    }
    return {
        name: {"value": value, "requestPolicy": {"default": value, "validValues": [value]}}
        for name, value in values.items()
    }


def pci_place(pci_bus_id: str, *, sysfs: Path = Path("/sys/bus/pci/devices")) -> PciPlace | None:
    """NVML's bus id (eight digits of domain, upper case) as the kernel's, with root and NUMA node."""
    match = re.fullmatch(r"0*([0-9a-f]{4}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", pci_bus_id.lower())
    if match is None:
        return None
    bus_id = ":".join(match.groups())
    try:
        path = (sysfs / bus_id).resolve(strict=True)
        numa = int((path / "numa_node").read_text())
    except (OSError, ValueError):
        return PciPlace(bus_id=bus_id, root=None, numa_node=None)
    root = next((part for part in path.parts if part.startswith("pci") and ":" in part), None)
    return PciPlace(bus_id=bus_id, root=root, numa_node=numa if numa >= 0 else None)


def semantic_version(text: str) -> str:
    """`570.86.05` as the semantic version the API server wants: `570.86.5`."""
    parts = [int(part) for part in re.findall(r"\d+", text)[:3]]
    return ".".join(str(part) for part in [*parts, 0, 0, 0][:3])


def _capacity(value: str, *, default: str, least: str, step: str) -> Capacity:
    valid: ValidRange = {"min": least, "step": step}
    if value != least:  # the API server wants min + step <= value; a single value needs no range
        valid["max"] = value
        return {"value": value, "requestPolicy": {"default": default, "validRange": valid}}
    return {"value": value, "requestPolicy": {"default": default, "validValues": [value]}}


def _attributes(
    gpu: Gpu, *, memory_bytes: int, sharing: Mode, place: PciPlace | None
) -> dict[str, Attribute]:
    cuda = gpu.cuda_driver_version
    major, minor = gpu.compute_capability
    texts: Mapping[str, str] = {
        "uuid": gpu.uuid,
        "productName": gpu.product_name,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "nvlinkClique": gpu.nvlink_clique,
        "fabricClusterUUID": gpu.fabric_cluster_uuid,
        "sharing": sharing.sharing,
        "timeSlice": sharing.time_slice or TimeSlice.DEFAULT,
    }
    attributes: dict[str, Attribute] = {name: {"string": text[:_TEXT_LIMIT]} for name, text in texts.items()}
    attributes |= {
        "cudaComputeCapability": {"version": f"{major}.{minor}.0"},
        "driverVersion": {"version": semantic_version(gpu.driver_version)},
        "cudaDriverVersion": {"version": f"{cuda // 1000}.{cuda % 1000 // 10}.0"},
        "minor": {"int": gpu.minor},
        "memoryBytes": {"int": memory_bytes},
        "oversubscribed": {"bool": False},
    }
    if place is not None:
        attributes["resource.kubernetes.io/pciBusID"] = {"string": place.bus_id}
        if place.root is not None:
            attributes["resource.kubernetes.io/pcieRoot"] = {"string": place.root}
        if place.numa_node is not None:
            attributes["resource.kubernetes.io/numaNode"] = {"int": place.numa_node}
    return attributes
