# SPDX-License-Identifier: Apache-2.0
"""Fakes with state for the agent's tests: GPUs, claims on a server, a node's directories."""

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot_agent import devices, files
from aliquot_agent.basespecs import BaseSpecs
from aliquot_agent.checkpoint import Checkpoints
from aliquot_agent.claims import ClaimRef, Claims
from aliquot_agent.devices import Attribute, Device, PciPlace, device_name, shareable_bytes
from aliquot_agent.errors import ApiError
from aliquot_agent.hardware import LeftOut
from aliquot_agent.library import Library
from aliquot_agent.locks import Locks
from aliquot_agent.nodepolicy import GpuPolicy, NodePolicy
from aliquot_agent.nvml import Gpu
from aliquot_agent.reconcile import Reconciler
from aliquot_agent.store import Store
from aliquot_api.names import DRIVER

GIB = 1024**3
NODE = "node-1"
BASE_KIND = "sim.aliquot.dev/gpu"
ESTIMATE = 512 * 1024**2


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 30) -> None:
    """Until it holds."""
    pause, end_s = threading.Event(), time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"condition not met within {timeout_s:g} s"
        pause.wait(0.01)


def make_gpu(index: int = 0, *, memory_bytes: int = 24 * GIB, **changes: Any) -> Gpu:
    """A GPU with a UUID of its own."""
    values: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{uuid.UUID(int=0xABCDEF0000 + index)}",
        "product_name": "NVIDIA L4",
        "brand": "Nvidia",
        "architecture": "Ada Lovelace",
        "compute_capability": (8, 9),
        "driver_version": "570.86.05",
        "cuda_driver_version": 12080,
        "minor": index,
        "memory_bytes": memory_bytes,
        "pci_bus_id": "",
        "nvlink_clique": "",
        "fabric_cluster_uuid": "",
    }
    return Gpu(**(values | changes))


def build_device(gpu: Gpu, *, policy: GpuPolicy | None = None, place: PciPlace | None = None) -> Device:
    """The device that the agent publishes for a GPU."""
    policy = policy or GpuPolicy()
    memory_bytes = devices.offered_bytes(gpu, policy=policy)
    return devices.build(gpu, policy=policy, place=place, memory_bytes=memory_bytes)


@dataclass
class FakeGpus:
    """GPUs of a node; `busy_uuids` have processes."""

    gpus: list[Gpu]
    busy_uuids: set[str] = field(default_factory=set)
    policy: NodePolicy = field(default_factory=NodePolicy)
    left_out: dict[str, LeftOut] = field(default_factory=dict)

    def by_device(self) -> Mapping[str, Gpu]:
        return {device_name(gpu.uuid): gpu for gpu in self.gpus}

    def busy(self, gpu_uuid: str) -> bool:
        return gpu_uuid in self.busy_uuids

    def policy_of(self, gpu: Gpu) -> GpuPolicy:
        return self.policy.gpu(uuid=gpu.uuid, index=gpu.index)

    def not_ours(self, gpu: Gpu) -> LeftOut | None:
        return self.left_out.get(gpu.uuid)


@dataclass
class FakeServer:
    """Claims by namespace and name; `failures` are raised first, one per call."""

    claims: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    failures: list[ApiError] = field(default_factory=list)
    reads: int = 0
    privileges: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """What lets a pod reach beyond a share, by namespace, name and UID."""
    pod_failures: list[ApiError] = field(default_factory=list)

    def privilege(self, namespace: str, name: str, uid: str) -> str:
        if self.pod_failures:
            raise self.pod_failures.pop(0)
        return self.privileges.get((namespace, name, uid), "")

    def add(self, claim: dict[str, Any]) -> ClaimRef:
        metadata = claim["metadata"]
        self.claims[metadata["namespace"], metadata["name"]] = claim
        return ClaimRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])

    def get_claim(self, namespace: str, name: str) -> dict[str, Any]:
        self.reads += 1
        if self.failures:
            raise self.failures.pop(0)
        try:
            return copy.deepcopy(self.claims[namespace, name])
        except KeyError:
            raise ApiError(status=404, message="not found") from None


def result(
    gpu: Gpu, *, memory: str | None = "8000Mi", cores: str = "0", request: str = "main", **changes: Any
) -> dict[str, Any]:
    """One allocation result as the scheduler writes it; memory None = all that is published."""
    whole = f"{shareable_bytes(gpu, reserve_bytes=0) // 1024**2}Mi"
    return {
        "request": request,
        "driver": DRIVER,
        "pool": NODE,
        "device": device_name(gpu.uuid),
        "shareID": str(uuid.uuid4()),
        "consumedCapacity": {"memory": memory or whole, "cores": cores, "shares": "1"},
        **changes,
    }


def make_claim(
    *results: dict[str, Any], name: str = "claim", config: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """An allocated claim."""
    return {
        "metadata": {"namespace": "team-a", "name": name, "uid": str(uuid.uuid4())},
        "status": {"allocation": {"devices": {"results": list(results), "config": config or []}}},
    }


@dataclass
class Node:
    """A node's directories and what is prepared there; `claims()` is a fresh agent process."""

    root: Path
    gpus: FakeGpus
    server: FakeServer
    boot_id: str = "boot-1"
    patience_s: float = 0.0
    refusals: list[str] = field(default_factory=list)
    locks_dir: Path | None = None
    described: list[str] = field(default_factory=list)
    """Devices whose attributes were looked up."""

    def __post_init__(self) -> None:
        self.library.write_bytes(b"\x7fELF library")
        (self.root / "base").mkdir(exist_ok=True)
        self.write_base_spec()

    @property
    def library(self) -> Path:
        return self.root / "libaliquot.so"

    @property
    def cdi_dir(self) -> Path:
        return self.root / "cdi"

    @property
    def claims_dir(self) -> Path:
        return self.root / "run" / "claims"

    @property
    def old_claims_dir(self) -> Path:
        return self.root / "state" / "claims"

    @property
    def checkpoint_dir(self) -> Path:
        return self.root / "plugin" / "claims"

    def write_base_spec(self, *, without: str = "") -> None:
        """The vendor's spec: one device per GPU, `without` one."""
        devices = [
            {"name": gpu.uuid, "containerEdits": {"env": ["X=1"]}}
            for gpu in self.gpus.gpus
            if gpu.uuid != without
        ]
        spec = {"cdiVersion": "0.5.0", "kind": BASE_KIND, "devices": devices}
        (self.root / "base" / "vendor.json").write_text(json.dumps(spec))

    def claims(self, *, step: files.Step = files.no_step) -> Claims:
        """The agent's claims, started."""
        locks = Locks(directory=self.locks_dir or self.root / "plugin")
        checkpoints = Checkpoints(directory=self.checkpoint_dir, step=step)
        store = self.store(checkpoints, step=step)
        claims = Claims(
            node=NODE,
            boot_id=self.boot_id,
            source=self.server,
            gpus=self.gpus,
            checkpoints=checkpoints,
            base=BaseSpecs(directories=(self.root / "base",), kind=BASE_KIND, moment_s=0.0),
            store=store,
            locks=locks,
            context_estimate_bytes=ESTIMATE,
            patience_s=self.patience_s,
            refused=lambda ref, claim, message: self.refusals.append(message),
            privilege=self.server.privilege,
            step=step,
        )
        claims.start()
        store.clear(locks.of)
        return claims

    def store(self, checkpoints: Checkpoints, *, step: files.Step = files.no_step) -> Store:
        """The files of its claims."""
        return Store(
            claims_dir=self.claims_dir,
            old_claims_dir=self.old_claims_dir,
            mps_dir=self.root / "run" / "mps",
            cdi_dir=self.cdi_dir,
            checkpoints=checkpoints,
            library=self.libraries,
            boot_id=self.boot_id,
            attributes=self.attributes,
            step=step,
        )

    def attributes(self, device: str) -> Mapping[str, Attribute]:
        """What the slice says of a device."""
        self.described.append(device)
        gpu = self.gpus.by_device().get(device)
        return {} if gpu is None else {"uuid": {"string": gpu.uuid}}

    @property
    def libraries(self) -> Library:
        """The library as an agent of this node's image puts it there."""
        return Library(source=self.library, state_dir=self.root / "state", moment_s=0.0)

    def reconcile(self, claims: Claims) -> None:
        """One pass of the reconciler."""
        store = self.store(Checkpoints(directory=self.checkpoint_dir))
        Reconciler(claims=claims, store=store, library=self.libraries).reconcile()

    def leftovers(self) -> list[str]:
        """Files of claims that are still there."""
        folders = (self.cdi_dir, self.claims_dir, self.old_claims_dir, self.checkpoint_dir)
        return sorted(str(path.relative_to(self.root)) for folder in folders for path in folder.rglob("*"))
