# SPDX-License-Identifier: Apache-2.0
"""Store what explains a failure: all logs and objects of a cluster, in one folder."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from .api import Object
from .system import TestbedError

if TYPE_CHECKING:  # the method Cluster.collect is ours
    from .cluster import Cluster

_NODE_COMMANDS = {
    "addresses": ("ip", "address"),
    "routes": ("ip", "route"),
    "rules": ("nft", "list", "ruleset"),
    "mounts": ("cat", "/proc/self/mountinfo"),
    "disk": ("df", "/var/lib"),
}


def collect(cluster: "Cluster", folder: Path) -> None:
    """Store the cluster's logs, objects, containers' output and nodes' state; what cannot be had is noted."""
    shutil.copytree(cluster.layout.logs, folder / "daemons", dirs_exist_ok=True)
    if cluster.layout.audit_log.exists():
        shutil.copy(cluster.layout.audit_log, folder / "audit.log")
    errors: list[str] = []
    for name, read in _sources(cluster, errors):
        try:
            text = read()
        except (TestbedError, OSError) as error:
            errors.append(f"{name}: {error}")
            continue
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if errors:
        (folder / "errors.txt").write_text("\n".join(errors) + "\n")


def _sources(cluster: "Cluster", errors: list[str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """What to store: each file's name, and what reads it."""
    for node in cluster.nodes:
        for name, argv in _NODE_COMMANDS.items():
            yield f"nodes/{node}/{name}", partial(cluster.node_exec, node, argv)
    try:
        kinds, pods = cluster.api.kinds(), cluster.list("pods")
    except TestbedError as error:
        errors.append(f"objects: {error}")
        return
    for kind in kinds:
        if kind.plural != "secrets":
            name = f"{kind.plural}.{kind.group}".rstrip(".")
            yield f"objects/{name}.yaml", partial(_dump, cluster, name)
    for pod in pods:
        yield from _pod_logs(cluster, pod)


def _pod_logs(cluster: "Cluster", pod: Object) -> Iterator[tuple[str, Callable[[], str]]]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for status in pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", []):
        container = status["name"]
        file = f"pods/{namespace}/{name}/{container}"
        yield f"{file}.log", partial(cluster.logs, name, namespace, container=container)
        if status["restartCount"]:
            yield (
                f"{file}.previous.log",
                partial(cluster.logs, name, namespace, container=container, previous=True),
            )


def _dump(cluster: "Cluster", kind: str) -> str:
    return str(yaml.safe_dump_all(cluster.list(kind), sort_keys=False))
