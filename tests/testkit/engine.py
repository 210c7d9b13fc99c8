# SPDX-License-Identifier: Apache-2.0
"""A Docker engine of our own: Debian's, on a socket of its own, that knows no network and leaves nothing.

It has a /run and a network namespace to itself, so that it meets neither another engine nor the machine's
firewall. What it builds stays in a folder, for the next run. It ends with the block, or with the process
that started it.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import docker

from tests.cluster.binaries import cache_dir
from tests.cluster.cgroups import Cgroups
from tests.cluster.processes import Daemon, Processes
from tests.cluster.system import TestbedError, locked, wait_until
from tests.testkit.debian import unpacked

_DAEMON: Final = "engine/dockerd"
_PART: Final = "engine"
_SETTINGS: Final = "settings.json"
_READY_S: Final = 120
_CALL_S: Final = 900
_OWN_RUN: Final = 'mount -t tmpfs tmpfs /run && exec "$0" "$@"'


@contextmanager
def running(folder: Path) -> Iterator[docker.DockerClient]:
    """A client of an engine whose images are in `folder`; one at a time, others wait."""
    folder = folder.resolve()
    with locked(folder):
        cgroups = Cgroups(cluster=name(folder))
        processes = Processes(records=folder, logs=folder, cgroup_of=cgroups.daemons, path=path())
        socket = cache_dir() / f"{name(folder)}.sock"  # a short path, as sockets need
        socket.parent.mkdir(parents=True, exist_ok=True)
        settings = folder / _SETTINGS
        settings.write_text(json.dumps(_settings(folder, socket=socket, cgroup=cgroups.node_root(_PART))))
        try:
            _end(processes, cgroups, socket)  # what a killed run left
            processes.log(_DAEMON).unlink(missing_ok=True)
            cgroups.create(_PART)
            processes.start(Daemon(_DAEMON, _argv(settings)))
            client = wait_until(
                lambda: _answering(socket, processes),
                what="the Docker engine",
                timeout_s=_READY_S,
                retry_on=(docker.errors.DockerException,),
            )
            try:
                yield client
            finally:
                client.close()
        finally:
            _end(processes, cgroups, socket)


def name(folder: Path) -> str:
    """What the cgroups of the engine of `folder` are called."""
    return f"engine-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]}"


def address(folder: Path) -> str:
    """DOCKER_HOST of the engine that runs on `folder`."""
    [host] = json.loads((folder / _SETTINGS).read_text())["hosts"]
    return str(host)


def path() -> str:
    """Where dockerd and what it starts are: the machine's own, else the package's."""
    system = "/usr/sbin:/usr/bin:/sbin:/bin"
    if shutil.which("dockerd", path=system):
        return system
    folder = unpacked("docker", "docker.io", "containerd", "runc")
    return f"{folder}/usr/sbin:{folder}/usr/bin:{system}"


def _settings(folder: Path, *, socket: Path, cgroup: str) -> dict[str, object]:
    return {
        "hosts": [f"unix://{socket}"],
        "group": "root",
        "data-root": str(folder / "data"),
        "exec-root": "/run/docker",
        "pidfile": "/run/docker.pid",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": cgroup,
        "bridge": "none",
        **dict.fromkeys(("iptables", "ip6tables", "ip-masq", "ip-forward"), False),
    }


def _argv(settings: Path) -> tuple[str, ...]:
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--net", "sh", "-c", _OWN_RUN),
        *("dockerd", "--config-file", str(settings)),
    )


def _answering(socket: Path, processes: Processes) -> docker.DockerClient:
    if processes.pid(_DAEMON) is None:
        raise TestbedError(f"the Docker engine has ended:\n{processes.last_words(_DAEMON)}")
    client = docker.DockerClient(base_url=f"unix://{socket}", timeout=_CALL_S)
    client.ping()
    return client


def _end(processes: Processes, cgroups: Cgroups, socket: Path) -> None:
    processes.stop(_DAEMON, timeout_s=30)
    cgroups.kill()
    cgroups.remove()
    socket.unlink(missing_ok=True)
