# SPDX-License-Identifier: Apache-2.0
"""CDI: the spec of a claim's shares, as data. Pure.

GPU access itself is the vendor's (`basespecs`); ours adds only the share. A device name is never used for
other content: it holds the claim's UID and the share ID.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NotRequired, TypedDict

from aliquot_agent import held, metadata, mps
from aliquot_agent.checkpoint import PreparedClaim, PreparedShare
from aliquot_agent.sharedir import LEDGER, QUOTA
from aliquot_api import modes
from aliquot_api.names import (
    CDI_KIND,
    CONTAINER_LIBRARY,
    CONTAINER_MPS_DIR,
    CONTAINER_PRELOAD,
    CONTAINER_SHARES_DIR,
    HOST_MPS_MEMORY,
)

CDI_VERSION: Final = "0.5.0"
LIBRARY: Final = "libaliquot.so"
CONTAINER_ROOT: Final = os.path.dirname(CONTAINER_SHARES_DIR)
PRELOAD: Final = "ld.so.preload"
FILE_PREFIX: Final = CDI_KIND.replace("/", "-") + "_"
_ROOT_OPTIONS: Final = ("ro", "nosuid", "nodev", "noexec", "mode=755", "size=64k")


class Mount(TypedDict):
    """A mount in the container; a bind mount where `type` is absent."""

    hostPath: str
    containerPath: str
    type: NotRequired[str]
    options: list[str]


class Edits(TypedDict):
    """Changes to a container."""

    mounts: list[Mount]
    env: NotRequired[list[str]]


class CdiDevice(TypedDict):
    """One device of a spec."""

    name: str
    containerEdits: Edits


class Spec(TypedDict):
    """A CDI spec file."""

    cdiVersion: str
    kind: str
    devices: list[CdiDevice]


def device_name(claim_uid: str, share: str) -> str:
    """Name of a share's CDI device."""
    return f"{claim_uid}-{share}"


def device_id(claim_uid: str, share: str) -> str:
    """Fully qualified name, as kubelet gets it."""
    return f"{CDI_KIND}={device_name(claim_uid, share)}"


def spec_path(directory: Path, claim_uid: str) -> Path:
    """Where the spec of a claim is."""
    return directory / f"{FILE_PREFIX}{claim_uid}.json"


def claims_with_spec(directory: Path) -> set[str]:
    """UIDs of the claims that have a spec."""
    return {path.stem.removeprefix(FILE_PREFIX) for path in directory.glob(f"{FILE_PREFIX}*.json")}


def build(claim: PreparedClaim, *, folder: str, mps_dir: str) -> Spec:
    """The spec of a claim whose files are in `folder`: a device for each of its shares.

    A whole GPU goes without quota, ledger and library: its device brings the metadata file only.
    """
    return {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [
            {
                "name": device_name(claim.uid, share.share),
                "containerEdits": _edits(claim, share, folder, mps_dir=mps_dir),
            }
            for share in claim.shares
        ],
    }


def _edits(claim: PreparedClaim, share: PreparedShare, folder: str, *, mps_dir: str) -> Edits:
    edits: Edits = {"mounts": list(_mounts(claim, share, folder))}
    if held.mode_of(share) == modes.MPS:
        edits["env"] = mps.environment(share)
        pipe = f"{mps_dir}/{share.gpu_uuid}/{mps.PIPE}"
        edits["mounts"] += [
            _mount(pipe, CONTAINER_MPS_DIR, "rw", "nosuid", "nodev", "noexec"),
            _mount(HOST_MPS_MEMORY, "/dev/shm", "rw", "nosuid", "nodev", "noexec"),
        ]
    return edits


def _mounts(claim: PreparedClaim, share: PreparedShare, host: str) -> Iterator[Mount]:
    """What stands in several devices is mounted once: the runtime's CDI library goes by the target."""
    if not share.whole:
        library = claim.library
        yield _root()
        yield _mount(f"{library}/{LIBRARY}", CONTAINER_LIBRARY, "ro", "nosuid", "nodev")
        yield _mount(f"{library}/{PRELOAD}", CONTAINER_PRELOAD, "ro", "nosuid", "nodev", "noexec")
        inside = f"{CONTAINER_SHARES_DIR}/{share.share}"
        ours = f"{host}/{share.share}"
        yield _mount(f"{ours}/{QUOTA}", f"{inside}/{QUOTA}", "ro", "nosuid", "nodev", "noexec")
        yield _mount(f"{ours}/{LEDGER}", f"{inside}/{LEDGER}", "rw", "nosuid", "nodev", "noexec")
    file = f"{host}/{metadata.file_name(share.request)}"
    yield _mount(file, metadata.container_path(claim, share.request), "ro", "nosuid", "nodev", "noexec")


def encode(spec: Spec) -> bytes:
    """A spec as its file."""
    return json.dumps(spec).encode()


def _root() -> Mount:
    """A mount point that holds all of ours: plain directories could be renamed, and the library with them.

    The runtime makes the targets of the mounts inside before it turns it read-only. Several shares in one
    container all bring it; the runtime's CDI library keeps one and orders mounts by depth.
    """
    return {
        "hostPath": "tmpfs",
        "containerPath": CONTAINER_ROOT,
        "type": "tmpfs",
        "options": list(_ROOT_OPTIONS),
    }


def _mount(host: str, container: str, *options: str) -> Mount:
    return {"hostPath": host, "containerPath": container, "options": [*options, "bind"]}
