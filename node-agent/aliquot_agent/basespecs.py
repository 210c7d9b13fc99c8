# SPDX-License-Identifier: Apache-2.0
"""The vendor toolkit's CDI specs: under which name they give access to a GPU, and whether they really do.

What was found holds for a second while the file that says it is the same: one of the directories holds the
specs of all claims as well, and is long when many are prepared at once. Device nodes are looked for before
each Prepare, on the host: on a fresh node a spec may be there before them. A burst of Prepares looks once.
"""

import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aliquot_agent import documents, files
from aliquot_agent.cdi import FILE_PREFIX
from aliquot_agent.errors import Refused

logger = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
_MOMENT_S: Final = 0.1
_GPU_NODE: Final = re.compile(r"/dev/nvidia\d+")

Nodes = Mapping[str, frozenset[str]]
"""Device nodes that a container gets, by CDI device."""
"""Tells one content of a file from the next without reading it."""


@dataclass(frozen=True, slots=True)
class _Found:
    """How a GPU is accessed."""

    name: str
    """Qualified CDI name."""
    nodes: frozenset[str]
    path: str
    """The spec that says it."""
    signature: files.Signature
    at_s: float
    """When it was found."""


class BaseSpecs:
    """The vendor toolkit's specs, read again when a file changes."""

    def __init__(
        self,
        *,
        directories: tuple[Path, ...],
        kind: str,
        host_root: Path = Path("/"),
        moment_s: float = _MOMENT_S,
    ) -> None:
        """What was verified within `moment_s` is not looked at again."""
        self._moment_s = moment_s
        self._directories = directories
        self._kind = kind
        self._host_root = host_root
        self._cache: dict[str, tuple[files.Signature, Nodes]] = {}
        self._found: dict[tuple[str, int, int], _Found] = {}
        self._verified_at_s: dict[str, float] = {}
        """By GPU UUID."""

    def find(self, *, gpu_uuid: str, index: int, minor: int) -> str:
        """The qualified CDI name of a GPU, by UUID or by index; raises Refused where no spec has it."""
        key = gpu_uuid, index, minor
        known, now_s = self._found.get(key), time.monotonic()
        if known is not None and now_s - self._verified_at_s[gpu_uuid] < self._moment_s:
            return known.name
        if known is not None and now_s - known.at_s < _FRESH_S and known.signature == _signature(known.path):
            with suppress(Refused):  # another spec may say it better
                self._verify(known)
                self._verified_at_s[gpu_uuid] = now_s
                return known.name
        found = self._look(gpu_uuid=gpu_uuid, index=index, minor=minor, now_s=now_s)
        self._verify(found)
        self._verified_at_s[gpu_uuid] = now_s
        self._found[key] = found
        return found.name

    def _look(self, *, gpu_uuid: str, index: int, minor: int, now_s: float) -> _Found:
        """Reads what there is.

        NVML may count otherwise now than when the spec was written: an index counts only with the GPU's
        own device node.
        """
        devices: dict[str, _Found] = {}
        for path in self._paths():
            signature, nodes = self._nodes(path)
            for device, each in nodes.items():
                devices[device] = _Found(f"{self._kind}={device}", each, path, signature, now_s)
        if gpu_uuid in devices:
            return devices[gpu_uuid]
        where, want = ", ".join(map(str, self._directories)), f"/dev/nvidia{minor}"
        found = devices.get(str(index))
        if found is None:
            raise Refused(
                f"no CDI spec gives access to {gpu_uuid}: nothing usable in {where}; "
                "is the vendor's container toolkit set up (nvidia-ctk cdi generate)?"
            )
        if {node for node in found.nodes if _GPU_NODE.fullmatch(node)} != {want}:
            raise Refused(
                f"CDI device {found.name} in {where} gives {sorted(found.nodes)}, but GPU {index} is "
                f"{gpu_uuid} at {want}: make the spec anew "
                "(nvidia-ctk cdi generate --device-name-strategy=uuid)"
            )
        return found

    def _verify(self, found: _Found) -> None:
        """Raises Refused where a device node is not there: the container would start without its GPU."""
        for node in sorted(found.nodes):
            try:
                mode = os.stat(f"{self._host_root}/{node.lstrip('/')}").st_mode
            except OSError as error:
                raise Refused(
                    f"CDI device {found.name} names {node}, which is not on this node ({error.strerror}): "
                    "is the driver loaded (nvidia-modprobe -u -c=0)?"
                ) from error
            if not stat.S_ISCHR(mode):
                raise Refused(f"CDI device {found.name} names {node}, which is no device node on this node")

    def _paths(self) -> Iterator[str]:
        for directory in self._directories:
            with suppress(FileNotFoundError):
                for name in os.listdir(directory):
                    if name.endswith((".json", ".yaml", ".yml")) and not name.startswith(FILE_PREFIX):
                        yield f"{directory}/{name}"

    def _nodes(self, path: str) -> tuple[files.Signature, Nodes]:
        signature = _signature(path)
        cached = self._cache.get(path)
        if cached is not None and cached[0] == signature:
            return cached
        try:
            document = documents.load(Path(path).read_text(), is_json=path.endswith(".json"))
        except (OSError, ValueError) as error:
            logger.warning("CDI spec cannot be read", extra={"file": path, "error": str(error)})
            return signature, {}
        read = self._cache[path] = signature, _usable_devices(document, kind=self._kind)
        return read


def _signature(path: str) -> files.Signature:
    """What is never that of a file, where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, -1)
    return files.signature(status)


def _usable_devices(document: object, *, kind: str) -> Nodes:
    """Devices of `kind` that change a container at all: a replaced toolkit leaves empty edits."""
    if not isinstance(document, Mapping) or document.get("kind") != kind:
        return {}
    usable: dict[str, frozenset[str]] = {}
    for device in _mappings(document.get("devices")):
        edits = device.get("containerEdits")
        if isinstance(edits, Mapping) and edits and "name" in device:
            usable[str(device["name"])] = frozenset(_nodes(edits)) | frozenset(
                _nodes(document.get("containerEdits"))
            )
    return usable


def _nodes(edits: object) -> Iterator[str]:
    """Paths of device nodes on the host."""
    if isinstance(edits, Mapping):
        for node in _mappings(edits.get("deviceNodes")):
            yield str(node.get("hostPath") or node.get("path"))


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))
