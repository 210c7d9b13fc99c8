# SPDX-License-Identifier: Apache-2.0
"""The processes and nodes of a cluster as things to start, stop and break; nothing here talks to its API."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from . import controlplane, network
from .binaries import Binaries
from .cgroups import Cgroups
from .node import CONTAINERD, CONTAINERD_SOCKET, KUBE_PROXY, Node
from .node import DAEMONS as NODE_DAEMONS
from .processes import Daemon, Processes
from .spec import Addresses, Layout, Spec
from .system import TestbedError, is_unmounted, run, wait_until

_FILLER = "/var/lib/.filler"
_FORGET_RULES = "; ".join(
    f"{verb} table {family} kube-proxy" for family in ("ip", "ip6") for verb in ("add", "delete")
)
"""kube-proxy 1.37.2 that starts beside rules of its predecessor may lose the map of Services (seen)."""


class Machinery:
    """What a cluster consists of.

    Daemons are named "etcd", "apiserver", "controller-manager", "scheduler", and "node-1/containerd",
    "node-1/kubelet", "node-1/kube-proxy".
    """

    def __init__(self, *, spec: Spec, layout: Layout, addresses: Addresses, binaries: Binaries) -> None:
        self.spec = spec
        self.layout = layout
        self.addresses = addresses
        self.binaries = binaries
        self._cgroups = Cgroups(cluster=spec.name)
        self._processes = Processes(
            records=layout.pids, logs=layout.logs, cgroup_of=self._cgroups.daemons, path=_path(binaries)
        )
        self._nodes = {
            name: Node(
                number=number,
                name=name,
                layout=layout,
                spec=spec,
                addresses=addresses,
                binaries=binaries,
                cgroup_root=self._cgroups.node_root(name),
            )
            for number, name in enumerate(spec.node_names, start=1)
        }

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names."""
        return self.spec.node_names

    @property
    def daemons(self) -> tuple[str, ...]:
        """The names of all daemons."""
        return (
            *controlplane.DAEMONS,
            *(f"{node}/{daemon}" for node in self.nodes for daemon in NODE_DAEMONS),
        )

    # --- daemons ------------------------------------------------------------------------------------------

    def stop(self, daemon: str) -> None:
        """End a daemon as its service manager would; pods of a stopped containerd run on."""
        self._processes.stop(self._daemon(daemon).name)

    def kill(self, daemon: str) -> None:
        """End a daemon with SIGKILL."""
        self._processes.kill(self._daemon(daemon).name)

    def start(self, daemon: str) -> None:
        """Start a daemon that does not run; containerd is waited for, since kubelet ends if it is absent."""
        wanted = self._daemon(daemon)
        node, _, program = daemon.partition("/")
        if program == KUBE_PROXY and self.state(daemon) == "stopped":
            self.node_exec(node, ["nft", _FORGET_RULES])
        self._processes.start(wanted)
        if program == CONTAINERD:
            socket_file = self.node_path(node, CONTAINERD_SOCKET)
            self._wait(daemon, lambda: _answers(socket_file))

    def restart(self, daemon: str) -> None:
        """Stop a daemon and start it again; `wait_ready` waits for the effect."""
        self.stop(daemon)
        self.start(daemon)

    def pause(self, daemon: str) -> None:
        """Freeze a daemon (SIGSTOP): it keeps its connections and answers nothing."""
        self._processes.send(self._daemon(daemon).name, signal.SIGSTOP)
        wait_until(lambda: self.state(daemon) != "running", what=f"{daemon} to stand still", timeout_s=10)

    def resume(self, daemon: str) -> None:
        """Let a paused daemon go on."""
        self._processes.send(self._daemon(daemon).name, signal.SIGCONT)

    def pid(self, daemon: str) -> int | None:
        """A daemon's pid, None if it does not run."""
        return self._processes.pid(daemon)

    def state(self, daemon: str) -> str:
        """Whether a daemon is "running", "paused" or "stopped"."""
        pid = self.pid(daemon)
        with suppress(FileNotFoundError, ProcessLookupError):
            if pid is not None:
                code = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                return "paused" if code == "T" else "running"
        return "stopped"

    def log_file(self, daemon: str) -> Path:
        """A daemon's log."""
        return self._processes.log(daemon)

    # --- nodes --------------------------------------------------------------------------------------------

    def load_image(self, *archives: Path, nodes: Sequence[str] | None = None) -> None:
        """Import image archives (OCI or docker save) on all nodes, or on some."""
        with ThreadPoolExecutor() as pool:
            jobs = [
                pool.submit(self._import, node, file) for node in nodes or self.nodes for file in archives
            ]
            for job in jobs:
                job.result()

    def enter(self, node: str) -> tuple[str, ...]:
        """What to put before a command to run it on a node."""
        return ("nsenter", "-t", str(self._holder(node)), "-m", "-n", "-u")

    def node_exec(
        self, node: str, argv: Sequence[str], *, stdin: str | None = None, timeout_s: float = 60
    ) -> str:
        """Run a command on a node, as root, in its network and file system."""
        return run(*self.enter(node), *argv, stdin=stdin, timeout_s=timeout_s)

    def node_path(self, node: str, path: str | Path) -> Path:
        """A file of a node as the host reaches it, while the node is up."""
        return Path(f"/proc/{self._holder(node)}/root") / str(path).lstrip("/")

    def boot_id(self, node: str) -> str:
        """What the present life of a node is known by."""
        return (self._node(node).folder / "boot_id").read_text().strip()

    def power_off(self, node: str) -> None:
        """End everything on a node at once: daemons, containers, network. Its /etc and /var stay."""
        wanted = self._node(node)
        self._cgroups.kill(node)
        self._processes.forget(node)
        network.disconnect_node(wanted.number, control=self._control)
        self._cgroups.remove(node)
        wait_until(lambda: is_unmounted(wanted.disk), what=f"{node}'s disk to be unmounted", timeout_s=10)

    def power_on(self, node: str) -> None:
        """Boot a node that is off: /run is empty, the boot id is new; `wait_node` waits for its kubelet."""
        self._boot(node)
        self._start_kubelet(node)

    def cut(self, node: str) -> None:
        """Pull a node's network cable: its pods run on, and nobody hears of them."""
        network.set_node_link(self._node(node).number, control=self._control, up=False)

    def heal(self, node: str) -> None:
        """Plug a node's network cable in again."""
        network.set_node_link(self._node(node).number, control=self._control, up=True)

    def fill_disk(self, node: str) -> None:
        """Leave no byte free in a node's /var/lib; needs `node_disk_bytes`."""
        if self.spec.node_disk_bytes is None:
            raise TestbedError(
                "nodes share the machine's disk: give them their own with node_disk_bytes first"
            )
        with self.node_path(node, _FILLER).open("wb", buffering=0) as file:
            for block_bytes in (1 << 20, 1 << 12, 1):
                with suppress(OSError):  # until no space is left
                    while os.write(file.fileno(), bytes(block_bytes)):
                        pass

    def free_disk(self, node: str) -> None:
        """Undo `fill_disk`."""
        self.node_path(node, _FILLER).unlink(missing_ok=True)

    # --- inside -------------------------------------------------------------------------------------------

    def _start_storage_and_api(self) -> None:
        """Make the control plane's files and network, and start what everything else waits for."""
        for folder in (self.layout.logs, self.layout.pids):
            folder.mkdir()
        controlplane.prepare(self.layout, self.spec, self.addresses)
        self._cgroups.create("control")
        held = self.layout.control / "held"
        script = f"cd / && : >'{held}' && exec sleep infinity"
        self._processes.start(Daemon(controlplane.HOLDER, ("unshare", "--net", "/bin/sh", "-c", script)))
        self._wait(controlplane.HOLDER, held.exists)
        network.connect_control_plane(self.addresses, holder=self._control)
        self.start(controlplane.ETCD)
        self.start(controlplane.API_SERVER)

    def _first_boot(self, node: str, images: Sequence[Path]) -> None:
        self._node(node).prepare()
        self._boot(node)
        self.load_image(*images, nodes=[node])

    def _boot(self, name: str) -> None:
        node = self._node(name)
        self._cgroups.create(name)
        self._processes.start(node.boot())
        self._wait(node.holder, node.is_held)
        network.connect_node(self.addresses, node.number, control=self._control, holder=self._holder(name))
        self.start(f"{name}/{CONTAINERD}")

    def _start_kubelet(self, node: str) -> None:
        for daemon in NODE_DAEMONS:
            if daemon != CONTAINERD:
                self.start(f"{node}/{daemon}")

    def _import(self, node: str, archive: Path) -> None:
        ctr = (*self.enter(node), str(self.binaries.containerd / "ctr"), "-n", "k8s.io", "images")
        with archive.open("rb") as stream:
            done = subprocess.run(
                [*ctr, "import", "-"], stdin=stream, capture_output=True, text=True, timeout=300, check=False
            )
        if done.returncode != 0:
            raise TestbedError(f"{node} does not take the image {archive}: {done.stderr.strip()}")

    def _holder(self, node: str) -> int:
        return self._running(self._node(node).holder)

    @property
    def _control(self) -> int:
        return self._running(controlplane.HOLDER)

    def _running(self, name: str) -> int:
        pid = self._processes.pid(name)
        if pid is None:
            raise TestbedError(
                f"{name} of cluster {self.spec.name!r} does not run; is it powered off, or down?"
            )
        return pid

    def _node(self, name: str) -> Node:
        try:
            return self._nodes[name]
        except KeyError:
            raise TestbedError(f"no node {name!r}; there are {', '.join(self.nodes)}") from None

    def _daemon(self, name: str) -> Daemon:
        """The daemon of that name, as it would be started now."""
        if name not in self.daemons:
            raise TestbedError(f"no daemon {name!r}; there are {', '.join(self.daemons)}")
        node, slash, _ = name.partition("/")
        if slash:
            found = self._node(node).daemons(holder=self._holder(node))
        else:
            given = (self.layout, self.spec, self.addresses, self.binaries)
            found = controlplane.daemons(*given, holder=self._control)
        return next(daemon for daemon in found if daemon.name == name)

    def _wait(
        self, daemon: str, condition: Callable[[], object], *, retry_on: tuple[type[Exception], ...] = ()
    ) -> None:
        """Wait for the effect of a daemon, and give up at once if it dies."""

        def check() -> object:
            if self._processes.pid(daemon) is None:
                raise TestbedError(f"{daemon} has ended:\n{self._processes.last_words(daemon)}")
            return condition()

        what = f"{daemon} to come up"
        wait_until(check, what=what, timeout_s=60, interval_s=0.02, retry_on=retry_on)


def _answers(socket_file: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, suppress(FileNotFoundError, ConnectionRefusedError):
        client.connect(str(socket_file))
        return True
    return False


def _path(binaries: Binaries) -> str:
    """containerd looks for its shim there, kubelet and kube-proxy for mount, nft and others."""
    return f"{binaries.containerd}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
