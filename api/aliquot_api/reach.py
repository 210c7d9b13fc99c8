# SPDX-License-Identifier: Apache-2.0
"""What lets a pod reach beyond its share: other tenants' GPUs, or the files that hold the limits.

The webhook refuses such a pod; the agent gives it no share, for it may have come while no webhook answered.
"""

import posixpath
from collections.abc import Iterator
from typing import Final

from aliquot_api import names
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text

CAPABILITIES: Final = frozenset({"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "DAC_READ_SEARCH"})
"""With these a container can mount, load code into the kernel, write to devices, or open any file of a file
system of which it has one: as good as privileged."""
GUARDED: Final = (
    names.HOST_STATE_DIR,
    names.HOST_RUN_DIR,
    "/var" + names.HOST_RUN_DIR,
    "/run/aliquot",  # pipes of MPS daemons
    "/var/run/aliquot",
    names.PLUGIN_DIR,
    names.PLUGIN_REGISTRY_DIR,
    names.CDI_DIR,
    "/run/cdi",
    "/etc/cdi",
    "/proc",  # /proc/1/root is the host's root
    "/sys/fs/cgroup",  # tells the agent whose a process is
    "/run/containerd",
    "/run/crio",
    "/run/docker.sock",
    "/var/run/docker.sock",
)
"""Host folders that decide what a container gets, and doors to them."""


def beyond_its_share(spec: JsonObject, guarded_dirs: tuple[str, ...] = ()) -> Iterator[InvalidInput]:
    """Each thing in pod spec `spec` that would make a GPU limit a mere wish; `guarded_dirs` are more folders
    that hold limits."""
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for index, container in enumerate(items(spec.get(kind))):
            context = obj(container).get("securityContext")
            if context:
                yield from _context(context, path=f"spec.{kind}[{index}].securityContext")
    if spec.get("hostPID") is True:
        yield InvalidInput(
            field="spec.hostPID",
            value=True,
            fix="it makes other tenants' processes reachable, so it cannot be in a pod with a GPU limit",
        )
    for index, volume in enumerate(items(spec.get("volumes"))):
        path = text(dig(volume, "hostPath", "path"))
        if path and any(_overlap(path, guarded) for guarded in (*GUARDED, *guarded_dirs)):
            yield InvalidInput(
                field=f"spec.volumes[{index}].hostPath.path",
                value=path[:64],
                fix="it reaches files of the node that hold GPU limits, or a door to them;"
                " mount the very folder that is needed instead",
            )


def _context(context: object, *, path: str) -> Iterator[InvalidInput]:
    if dig(context, "privileged") is True:
        yield InvalidInput(
            field=f"{path}.privileged",
            value=True,
            fix="a privileged container reaches every GPU of its node, so it cannot be in a pod with a GPU"
            " limit; name the capabilities it needs instead"
            " (whole GPUs: only where the administrator allows it)",
        )
    for capability in items(dig(context, "capabilities", "add")):
        if text(capability).upper().removeprefix("CAP_") in CAPABILITIES:
            yield InvalidInput(
                field=f"{path}.capabilities.add",
                value=text(capability),
                fix="a container with it can lift its GPU limit, so it cannot be in a pod with one",
            )


def _overlap(path: str, guarded: str) -> bool:
    """Whether one of two absolute paths lies in the other."""
    # normpath keeps two leading slashes, which mean the same here.
    ours, theirs = (f"/{posixpath.normpath(each).strip('/')}/".replace("//", "/") for each in (path, guarded))
    return ours.startswith(theirs) or theirs.startswith(ours)
