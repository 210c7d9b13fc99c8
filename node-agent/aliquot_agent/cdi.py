# SPDX-License-Identifier: Apache-2.0
"""CDI: the spec of a claim's shares, as data, and the look-up of GPUs in the vendor toolkit's specs.

GPU access itself is the vendor's; our spec adds only the share. A device name is never used for other
content: it holds the claim's UID and the share ID.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

import yaml

from aliquot_agent.checkpoint import PreparedClaim
from aliquot_agent.errors import Refused
from aliquot_agent.sharedir import LEDGER, QUOTA
from aliquot_api.names import CDI_KIND, CONTAINER_LIBRARY, CONTAINER_PRELOAD, CONTAINER_SHARES_DIR

logger = logging.getLogger(__name__)

CDI_VERSION: Final = "0.5.0"
LIBRARY: Final = "libaliquot.so"
CONTAINER_ROOT: Final = os.path.dirname(CONTAINER_SHARES_DIR)
PRELOAD: Final = "ld.so.preload"
_FILE_PREFIX: Final = CDI_KIND.replace("/", "-") + "_"
_ROOT_OPTIONS: Final = ("ro", "nosuid", "nodev", "noexec", "mode=755", "size=64k")


_GPU_NODE: Final = re.compile(r"/dev/nvidia\d+")

Nodes = Mapping[str, frozenset[str]]
"""Device nodes that a container gets, by CDI device."""


class Mount(TypedDict):
    """A mount in the container; a bind mount where `type` is absent."""

    hostPath: str
    containerPath: str
    type: NotRequired[str]
    options: list[str]


class Edits(TypedDict):
    """Changes to a container."""

    mounts: list[Mount]


class CdiDevice(TypedDict):
    """One device of a spec."""

    name: str
    containerEdits: Edits


class Spec(TypedDict):
    """A CDI spec file."""

    cdiVersion: str
    kind: str
    devices: list[CdiDevice]
    containerEdits: NotRequired[Edits]


def device_name(claim_uid: str, share: str) -> str:
    """Name of a share's CDI device."""
    return f"{claim_uid}-{share}"


def device_id(claim_uid: str, share: str) -> str:
    """Fully qualified name, as kubelet gets it."""
    return f"{CDI_KIND}={device_name(claim_uid, share)}"


def spec_path(directory: Path, claim_uid: str) -> Path:
    """Where the spec of a claim is."""
    return directory / f"{_FILE_PREFIX}{claim_uid}.json"


def claims_with_spec(directory: Path) -> set[str]:
    """UIDs of the claims that have a spec."""
    return {path.stem.removeprefix(_FILE_PREFIX) for path in directory.glob(f"{_FILE_PREFIX}*.json")}


def build(claim: PreparedClaim, *, claims_dir: Path) -> Spec:
    """The spec of a claim's shares that go with the shim."""
    library = Path(claim.library)
    return {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [
            {
                "name": device_name(claim.uid, share.share),
                "containerEdits": {
                    "mounts": _share_mounts(claims_dir / claim.uid / share.share, share.share)
                },
            }
            for share in claim.shares
            if not share.whole
        ],
        # Once per container, however many shares of the claim it holds.
        "containerEdits": {
            "mounts": [
                _root(),
                _mount(library / LIBRARY, CONTAINER_LIBRARY, "ro", "nosuid", "nodev"),
                _mount(library / PRELOAD, CONTAINER_PRELOAD, "ro", "nosuid", "nodev", "noexec"),
            ]
        },
    }


def encode(spec: Spec) -> bytes:
    """A spec as its file."""
    return json.dumps(spec).encode()


def _share_mounts(host: Path, share: str) -> list[Mount]:
    return [
        _mount(host / QUOTA, f"{CONTAINER_SHARES_DIR}/{share}/{QUOTA}", "ro", "nosuid", "nodev", "noexec"),
        _mount(host / LEDGER, f"{CONTAINER_SHARES_DIR}/{share}/{LEDGER}", "rw", "nosuid", "nodev", "noexec"),
    ]


def _root() -> Mount:
    """A mount point that holds all of ours: plain directories could be renamed, and the library with them.

    The runtime makes the targets of the mounts inside before it turns it read-only. Specs of two claims in
    one container both bring it; the runtime's CDI library keeps one and orders mounts by depth.
    """
    return {
        "hostPath": "tmpfs",
        "containerPath": CONTAINER_ROOT,
        "type": "tmpfs",
        "options": list(_ROOT_OPTIONS),
    }


def _mount(host: Path, container: str, *options: str) -> Mount:
    return {"hostPath": str(host), "containerPath": container, "options": [*options, "bind"]}


class BaseSpecs:
    """The vendor toolkit's specs, read again when a file changes."""

    def __init__(self, *, directories: tuple[Path, ...], kind: str) -> None:
        self._directories = directories
        self._kind = kind
        self._cache: dict[Path, tuple[tuple[int, int, int], Nodes]] = {}

    def find(self, *, gpu_uuid: str, index: int, minor: int) -> str:
        """The qualified CDI name of a GPU, by UUID or by index; raises Refused where no spec has it.

        NVML may count otherwise now than when the spec was written: an index counts only with the GPU's
        own device node.
        """
        nodes: dict[str, frozenset[str]] = {}
        for path in self._paths():
            nodes |= self._nodes(path)
        if gpu_uuid in nodes:
            return f"{self._kind}={gpu_uuid}"
        where, want = ", ".join(map(str, self._directories)), f"/dev/nvidia{minor}"
        found = nodes.get(str(index))
        if found is None:
            raise Refused(
                f"no CDI spec gives access to {gpu_uuid}: nothing usable in {where}; "
                "is the vendor's container toolkit set up (nvidia-ctk cdi generate)?"
            )
        if {node for node in found if _GPU_NODE.fullmatch(node)} != {want}:
            raise Refused(
                f"CDI device {self._kind}={index} in {where} gives {sorted(found)}, but GPU {index} is "
                f"{gpu_uuid} at {want}: make the spec anew "
                "(nvidia-ctk cdi generate --device-name-strategy=uuid)"
            )
        return f"{self._kind}={index}"

    def _paths(self) -> Iterator[Path]:
        for directory in self._directories:
            with suppress(FileNotFoundError):
                for name in os.listdir(directory):
                    if name.endswith((".json", ".yaml", ".yml")) and not name.startswith(_FILE_PREFIX):
                        yield directory / name

    def _nodes(self, path: Path) -> Nodes:
        try:
            status = path.stat()
            signature = (status.st_ino, status.st_mtime_ns, status.st_size)
            cached = self._cache.get(path)
            if cached is not None and cached[0] == signature:
                return cached[1]
            text = path.read_text()
            document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (OSError, ValueError, yaml.YAMLError) as error:
            logger.warning("CDI spec cannot be read", extra={"file": str(path), "error": str(error)})
            return {}
        nodes = _usable_devices(document, kind=self._kind)
        self._cache[path] = (signature, nodes)
        return nodes


def _usable_devices(document: object, *, kind: str) -> Nodes:
    """Devices of `kind` that change a container at all: a replaced toolkit leaves empty edits."""
    if not isinstance(document, Mapping) or document.get("kind") != kind:
        return {}
    devices: list[Mapping[str, Any]] = document.get("devices") or []
    return {
        str(device["name"]): frozenset(str(node["path"]) for node in edits.get("deviceNodes") or [])
        for device in devices
        if (edits := device.get("containerEdits"))
    }
